"""What producers and workers do, as rules: enqueue, claim, and verdicts with any receipt."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from holdfast.client.blocking import BlockingMessage
from holdfast.client.verdicts import VerdictLike
from holdfast.model.answers import Result
from holdfast.model.errors import Conflict, MessageNotFound, StaleLease
from holdfast.model.ids import MessageId
from holdfast.model.message import NewMessage, Receipt
from holdfast.testing.machine import choices
from holdfast.testing.machine.choices import REFS
from holdfast.testing.machine.queue_model import ModelMessage, ModelOutcome, Ref
from holdfast.testing.machine.watch import Handle, QueueWatch


class WorkRules(QueueWatch):
    """The rules of one queue's life; the machine adds those of time, of operators and of a crash."""

    # --- Enqueue and claim ---------------------------------------------------------------------------------------

    @initialize(drafts=st.lists(choices.drafts, min_size=3, max_size=8), changes=choices.policies)
    def begin(self, drafts: list[dict[str, Any]], changes: dict[str, Any]) -> None:
        """Begin with something to claim: most of what is worth seeing begins with a claim."""
        self._set_policy(REFS[0], changes)
        self._enqueue(REFS[0], drafts)

    @rule(ref=choices.refs, drafts=st.lists(choices.drafts, min_size=1, max_size=4))
    def enqueue(self, ref: Ref, drafts: list[dict[str, Any]]) -> None:
        self._enqueue(ref, drafts)

    @precondition(lambda self: self.model.keys)
    @rule(pick=choices.picks, prefers_gone=st.booleans(), off_ms=st.sampled_from([None, None, -1, 0]))
    def enqueue_a_known_key(self, pick: int, prefers_gone: bool, off_ms: int | None) -> None:
        """Now, or at the very end of its window; whether the first message is still there or not."""
        keys = list(self.model.keys.items())
        gone = [(place, seen) for place, seen in keys if seen[0] not in self.model.records] if prefers_gone else []
        (ref, key), (_, ends_at) = (gone or keys)[pick % len(gone or keys)]
        if off_ms is not None:
            self.clock.step_to(max(self._now, ends_at + off_ms))
        self._enqueue(ref, [{"payload": b"again", "key": key}])

    def _enqueue(self, ref: Ref, drafts: list[dict[str, Any]]) -> None:
        ids = self._queue(ref).enqueue([_new_message(draft) for draft in drafts])
        assert len(ids) == len(drafts)
        for id, draft in zip(ids, drafts, strict=True):
            first = self.model.first_of(ref, draft.get("key"), self._now)
            assert id.duplicate == (first is not None)
            if first is None:
                assert id.snowflake > self.highest_id
                self.highest_id = id.snowflake
                self.model.enqueue(ref, id.snowflake, draft, self._now)
            else:
                assert id.snowflake == first
            assert id.correlation_id == (self.model.correlation_ids[id.snowflake] or id)

    @rule(ref=choices.refs, limit=choices.limits, lease_ms=choices.leases, with_state=st.booleans())
    def claim(self, ref: Ref, limit: int, lease_ms: int | None, with_state: bool) -> None:
        self._claim(ref, limit, lease_ms, with_state)

    @precondition(lambda self: self.model.records)
    @rule(pick=choices.picks, limit=choices.limits, lease_ms=choices.leases, with_state=st.booleans())
    def claim_where_something_is(self, pick: int, limit: int, lease_ms: int | None, with_state: bool) -> None:
        self._claim(self._pick_record(pick).ref, limit, lease_ms, with_state)

    @precondition(lambda self: self.model.instants(self._now))
    @rule(pick=choices.picks, limit=choices.limits, which=st.integers(0, 2), off_ms=st.sampled_from([-1, 0, 0]))
    def claim_at_an_instant(self, pick: int, limit: int, which: int, off_ms: int) -> None:
        self._step_to_an_instant(which, off_ms)
        if self.model.records:
            self._claim(self._pick_record(pick).ref, limit, None, False)

    @precondition(lambda self: self.model.records)
    @rule(pick=choices.picks, verdict=choices.verdicts, error=choices.errors, again=st.booleans())
    def claim_and_settle(self, pick: int, verdict: str, error: str | None, again: bool) -> None:
        """At once, so that budgets are used up within a short history; and enqueue once more what had a key."""
        before = len(self.handles)
        self._claim(self._pick_record(pick).ref, 1, None, False)
        for handle in self.handles[before:]:
            self._settle(verdict, [handle], error)
            for (ref, key), (id, _) in list(self.model.keys.items()):
                if id == handle.id and again:
                    self._enqueue(ref, [{"payload": b"again", "key": key}])

    def _claim(self, ref: Ref, limit: int, lease_ms: int | None, with_state: bool) -> None:
        options: dict[str, Any] = {"state": with_state}
        if lease_ms is not None:
            options["lease"] = f"{lease_ms}ms"
        self._note_claimed(ref, self._queue(ref).claim(limit, **options), limit, lease_ms, with_state)

    def _note_claimed(
        self, ref: Ref, messages: list[BlockingMessage], limit: int, lease_ms: int | None, with_state: bool
    ) -> None:
        taken = self.model.claim(ref, limit, lease_ms, self._now)
        assert [message.id.snowflake for message in messages] == [record.id for record in taken]
        for message, record in zip(messages, taken, strict=True):
            self._check_delivery(message, record)
            if with_state:
                assert (message.state, message.etag) == (record.document, record.etag)
            record.receipt = message.receipt
            etag = message.etag if with_state else None
            self.handles.append(Handle(record.id, ref, message.receipt, etag, message))
        self._adopt_ended(ref)

    @precondition(lambda self: self.handles)
    @rule(
        picks=st.lists(st.tuples(choices.picks, choices.verdicts), min_size=1, max_size=3),
        stale=choices.mostly_current,
        error=choices.errors,
        delay_ms=st.one_of(st.none(), choices.delays),
        limit=choices.limits,
        lease_ms=choices.leases,
    )
    def exchange(
        self,
        picks: list[tuple[int, str]],
        stale: bool,
        error: str | None,
        delay_ms: int | None,
        limit: int,
        lease_ms: int | None,
    ) -> None:
        """Verdicts of several kinds, and a claim that may find what they have given back."""
        judged = [(self._pick(pick, stale), verdict) for pick, verdict in picks]
        ref = judged[0][0].ref
        judged = [(handle, verdict) for handle, verdict in judged if handle.ref == ref]
        documents: list[VerdictLike] = [_verdict_document(*each, error, delay_ms) for each in judged]
        options: Any = {} if lease_ms is None else {"lease": f"{lease_ms}ms"}
        results, messages = self._queue(ref).exchange(documents, limit, **options)
        assert len(results) == len(judged)
        for (handle, verdict), result in zip(judged, results, strict=True):
            self._note_settled(handle, result, verdict, error, delay_ms)
        self._note_claimed(ref, messages, limit, lease_ms, False)

    # --- Verdicts, with any receipt ------------------------------------------------------------------------------

    @precondition(lambda self: self.handles)
    @rule(
        picks=st.lists(choices.picks, min_size=1, max_size=3),
        stale=choices.mostly_current,
        verdict=choices.verdicts,
        error=choices.errors,
        delay_ms=st.one_of(st.none(), choices.delays),
    )
    def settle(self, picks: list[int], stale: bool, verdict: str, error: str | None, delay_ms: int | None) -> None:
        self._settle(verdict, [self._pick(pick, stale) for pick in picks], error, delay_ms)

    @precondition(lambda self: any(record.receipt for record in self.model.records.values()))
    @rule(pick=choices.picks, off_ms=st.sampled_from([-1, 0, 0]), by_ttl=st.booleans(), verdict=choices.verdicts)
    def settle_at_the_end(self, pick: int, off_ms: int, by_ttl: bool, verdict: str) -> None:
        """At the very end of its lease or of its TTL, or just short of it."""
        held = [record for record in self.model.records.values() if record.receipt]
        mortal = [record for record in held if record.expires_at] if by_ttl else []
        record = (mortal or held)[pick % len(mortal or held)]
        ends_at = record.expires_at if mortal and record.expires_at else record.lease_expires_at
        self.clock.step_to(max(self._now, ends_at + off_ms))
        self._settle(verdict, [handle for handle in self.handles if handle.receipt == record.receipt])

    @precondition(lambda self: self.handles)
    @rule(pick=choices.picks, stale=choices.mostly_current, lease_ms=choices.leases)
    def extend(self, pick: int, stale: bool, lease_ms: int | None) -> None:
        self._settle("extend", [self._pick(pick, stale)], lease_ms=lease_ms)

    @precondition(lambda self: self.handles)
    @rule(pick=choices.picks, ref=choices.refs, verdict=st.sampled_from(["ack", "nack", "release"]))
    def settle_in_some_queue(self, pick: int, ref: Ref, verdict: str) -> None:
        """A receipt counts in the queue of its message alone."""
        handle = self._pick(pick, stale=False)
        self._settle(verdict, [Handle(handle.id, ref, handle.receipt, None, None)])

    @precondition(lambda self: self.handles)
    @rule(
        pick=choices.picks,
        part=st.sampled_from(["token", "version"]),
        verdict=st.sampled_from(["ack", "release", "extend"]),
    )
    def settle_with_a_forged_receipt(self, pick: int, part: str, verdict: str) -> None:
        """The right message, and all but one part of its receipt."""
        handle = self._pick(pick, stale=False)
        receipt = Receipt.parse(handle.receipt)
        token = bytes([receipt.token[0] ^ 1]) + receipt.token[1:]
        forged = receipt._replace(token=token) if part == "token" else receipt._replace(version=receipt.version + 1)
        self._settle(verdict, [Handle(handle.id, handle.ref, str(forged), None, None)])

    @precondition(lambda self: any(handle.message for handle in self.handles))
    @rule(
        pick=choices.picks,
        stale=choices.mostly_current,
        etags=st.lists(st.sampled_from(["known", "known", "first", "foreign"]), min_size=1, max_size=3),
    )
    def save_state(self, pick: int, stale: bool, etags: list[str]) -> None:
        handle = self._pick(pick, stale, connected=True)
        for which in etags:
            saved = self.etags[handle.id]
            etag = {"known": None, "first": saved[0] if saved else None, "foreign": "foreign"}[which]
            self._save_state(handle, {"n": len(saved)}, etag)

    def _save_state(self, handle: Handle, document: dict[str, int], etag: str | None) -> None:
        """With the ETag given; without one, a message compares the one it knows."""
        assert handle.message is not None
        record = self.model.held_by(handle.ref, handle.receipt, self._now)
        if record is None:
            with pytest.raises(StaleLease):
                handle.message.save_state(document, etag=etag)
        elif (etag or handle.etag) != record.etag:
            with pytest.raises(Conflict):
                handle.message.save_state(document, etag=etag)
        else:
            saved = handle.message.save_state(document, etag=etag)
            assert saved is not None
            assert saved not in self.etags[record.id]
            self.etags[record.id].append(saved)
            handle.etag = record.etag = saved
            record.document = document

    @precondition(lambda self: any(handle.message for handle in self.handles))
    @rule(pick=choices.picks, stale=choices.mostly_current, percent=st.integers(0, 100))
    def progress(self, pick: int, stale: bool, percent: int) -> None:
        handle = self._pick(pick, stale, connected=True)
        assert handle.message is not None
        record = self.model.held_by(handle.ref, handle.receipt, self._now)
        if record is None:
            with pytest.raises(StaleLease):
                handle.message.progress(percent)
        else:
            handle.message.progress(percent)
            record.progress = percent

    # --- Parts ---------------------------------------------------------------------------------------------------

    def _step_to_an_instant(self, which: int, off_ms: int) -> None:
        instants = self.model.instants(self._now)
        self.clock.step_to(max(self._now, instants[min(which, len(instants) - 1)] + off_ms))

    def _set_policy(self, ref: Ref, changes: dict[str, Any]) -> None:
        policy = self._queue(ref).set_policy(**changes)
        self.model.policies[ref].update(changes)
        assert {name: getattr(policy, name) for name in self.model.policies[ref]} == self.model.policies[ref]

    def _settle(
        self,
        verdict: str,
        held: list[Handle],
        error: str | None = None,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
    ) -> None:
        """Give verdicts on the receipts that belong to the first one's queue, in one call."""
        ref = held[0].ref
        held = [handle for handle in held if handle.ref == ref]
        queue, receipts = self._queue(ref), [handle.receipt for handle in held]
        match verdict:
            case "ack":
                results = queue.ack(receipts)
            case "release":
                results = queue.release(receipts)
            case "extend":
                results = queue.extend(receipts, None if lease_ms is None else f"{lease_ms}ms")
            case _:
                delay = None if delay_ms is None else f"{delay_ms}ms"
                results = queue.nack(receipts, error, delay=delay, defer=verdict == "defer", final=verdict == "final")
        assert len(results) == len(held)
        for handle, result in zip(held, results, strict=True):
            self._note_settled(handle, result, verdict, error, delay_ms, lease_ms)

    def _note_settled(
        self,
        handle: Handle,
        result: Result,
        verdict: str,
        error: str | None,
        delay_ms: int | None,
        lease_ms: int | None = None,
    ) -> None:
        assert result.snowflake == handle.id
        record = self.model.held_by(handle.ref, handle.receipt, self._now)
        outcome = ModelOutcome(False) if record is None else self._judge(verdict, record, error, delay_ms, lease_ms)
        assert ModelOutcome(result.ok, result.state, result.retry_at, result.lease_expires_at) == outcome
        assert result.error == (None if outcome.ok else StaleLease.code)
        if outcome.ok:
            assert result.correlation_id == (self.model.correlation_ids[handle.id] or MessageId(handle.id))

    def _judge(
        self, verdict: str, record: ModelMessage, error: str | None, delay_ms: int | None, lease_ms: int | None
    ) -> ModelOutcome:
        match verdict:
            case "ack":
                return self.model.ack(record, self._now)
            case "release":
                return self.model.release(record, self._now)
            case "extend":
                return self.model.extend(record, self._now, lease_ms)
            case "defer":
                return self.model.defer(record, self._now, error, delay_ms)
            case _:
                return self.model.nack(record, self._now, error, delay_ms, final=verdict == "final")

    def _adopt_ended(self, ref: Ref) -> None:
        """A claim ends the TTLs it comes upon. How many, before a sweep, is the store's to choose."""
        for record in self.model.of(ref, "ready"):
            if not record.is_over(self._now):
                continue
            try:
                has_ended = self._queue(ref).get(record.id).state == "failed"
            except MessageNotFound:
                has_ended = True
            if has_ended:
                self.model.end_by_ttl(record, self._now)


def _verdict_document(handle: Handle, verdict: str, error: str | None, delay_ms: int | None) -> dict[str, Any]:
    if verdict in ("ack", "release"):
        return {"receipt": handle.receipt, "verdict": verdict}
    return {
        "receipt": handle.receipt,
        "verdict": "nack",
        "error": error,
        "delay_ms": delay_ms,
        "defer": verdict == "defer",
        "final": verdict == "final",
    }


def _new_message(draft: dict[str, Any]) -> NewMessage:
    options = dict(draft)
    payload = options.pop("payload")
    for name in ("delay", "ttl"):
        if (ms := options.pop(f"{name}_ms", None)) is not None:
            options[name] = f"{ms}ms"
    return NewMessage(payload, **options)
