"""Rules of the queue machine for producers and workers: enqueue, claim, and verdicts with any receipt."""

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
from holdfast.testing.machine.checks import HeldDelivery, QueueChecks
from holdfast.testing.machine.choices import REFS
from holdfast.testing.machine.queue_model import ModelMessage, ModelOutcome, Ref


class WorkRules(QueueChecks):
    """A state machine with the rules of producers and workers. `QueueMachine` adds time, operators and crashes."""

    # --- Enqueue and claim ---------------------------------------------------------------------------------------

    @initialize(drafts=st.lists(choices.drafts, min_size=3, max_size=8), changes=choices.policies)
    def begin(self, drafts: list[dict[str, Any]], changes: dict[str, Any]) -> None:
        """Begin with messages in the first queue, because most rules need a claimed message."""
        self._set_policy(REFS[0], changes)
        self._enqueue(REFS[0], drafts)

    @rule(ref=choices.refs, drafts=st.lists(choices.drafts, min_size=1, max_size=4))
    def enqueue(self, ref: Ref, drafts: list[dict[str, Any]]) -> None:
        self._enqueue(ref, drafts)

    @precondition(lambda self: self.model.keys)
    @rule(pick=choices.picks, prefers_gone=st.booleans(), off_ms=st.sampled_from([None, None, -1, 0]))
    def enqueue_a_known_key(self, pick: int, prefers_gone: bool, off_ms: int | None) -> None:
        """Enqueue with a known key, now or at the end of its window. The first message may be stored or gone."""
        keys = list(self.model.keys.items())
        gone = [entry for entry in keys if entry[1][0] not in self.model.records] if prefers_gone else []
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
    def claim_where_messages_are(self, pick: int, limit: int, lease_ms: int | None, with_state: bool) -> None:
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
        """Claim and settle in one rule, so that short histories use up retry budgets; maybe enqueue the key again."""
        before = len(self.deliveries)
        self._claim(self._pick_record(pick).ref, 1, None, False)
        for delivery in self.deliveries[before:]:
            self._settle(verdict, [delivery], error)
            for (ref, key), (id, _) in list(self.model.keys.items()):
                if id == delivery.id and again:
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
            self.deliveries.append(HeldDelivery(record.id, ref, message.receipt, etag, message))
        self._end_ttls(ref)

    @precondition(lambda self: self.deliveries)
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
        """Give verdicts of several kinds and claim, possibly the messages that the verdicts have returned."""
        judged = [(self._pick(pick, stale), verdict) for pick, verdict in picks]
        ref = judged[0][0].ref
        judged = [(delivery, verdict) for delivery, verdict in judged if delivery.ref == ref]
        documents: list[VerdictLike] = [_verdict_document(*each, error, delay_ms) for each in judged]
        options: Any = {} if lease_ms is None else {"lease": f"{lease_ms}ms"}
        results, messages = self._queue(ref).exchange(documents, limit, **options)
        assert len(results) == len(judged)
        for (delivery, verdict), result in zip(judged, results, strict=True):
            self._note_settled(delivery, result, verdict, error, delay_ms)
        self._note_claimed(ref, messages, limit, lease_ms, False)

    # --- Verdicts, with any receipt ------------------------------------------------------------------------------

    @precondition(lambda self: self.deliveries)
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
        """Settle at the end of the lease or of the TTL, or 1 ms before it."""
        held = [record for record in self.model.records.values() if record.receipt]
        expiring = [record for record in held if record.expires_at] if by_ttl else []
        record = (expiring or held)[pick % len(expiring or held)]
        ends_at = record.expires_at if expiring and record.expires_at else record.lease_expires_at
        self.clock.step_to(max(self._now, ends_at + off_ms))
        self._settle(verdict, [delivery for delivery in self.deliveries if delivery.receipt == record.receipt])

    @precondition(lambda self: self.deliveries)
    @rule(pick=choices.picks, stale=choices.mostly_current, lease_ms=choices.leases)
    def extend(self, pick: int, stale: bool, lease_ms: int | None) -> None:
        self._settle("extend", [self._pick(pick, stale)], lease_ms=lease_ms)

    @precondition(lambda self: self.deliveries)
    @rule(pick=choices.picks, ref=choices.refs, verdict=st.sampled_from(["ack", "nack", "release"]))
    def settle_in_some_queue(self, pick: int, ref: Ref, verdict: str) -> None:
        """Settle with a receipt of any queue: it is valid only in the queue of its message."""
        delivery = self._pick(pick, stale=False)
        self._settle(verdict, [HeldDelivery(delivery.id, ref, delivery.receipt, None, None)])

    @precondition(lambda self: self.deliveries)
    @rule(
        pick=choices.picks,
        part=st.sampled_from(["token", "version"]),
        verdict=st.sampled_from(["ack", "release", "extend"]),
    )
    def settle_with_a_forged_receipt(self, pick: int, part: str, verdict: str) -> None:
        """Settle with a receipt that has one wrong part."""
        delivery = self._pick(pick, stale=False)
        receipt = Receipt.parse(delivery.receipt)
        token = bytes([receipt.token[0] ^ 1]) + receipt.token[1:]
        forged = receipt._replace(token=token) if part == "token" else receipt._replace(version=receipt.version + 1)
        self._settle(verdict, [HeldDelivery(delivery.id, delivery.ref, str(forged), None, None)])

    @precondition(lambda self: any(delivery.message for delivery in self.deliveries))
    @rule(
        pick=choices.picks,
        stale=choices.mostly_current,
        etags=st.lists(st.sampled_from(["known", "known", "first", "foreign"]), min_size=1, max_size=3),
    )
    def save_state(self, pick: int, stale: bool, etags: list[str]) -> None:
        delivery = self._pick(pick, stale, connected=True)
        for which in etags:
            saved = self.etags[delivery.id]
            etag = {"known": None, "first": saved[0] if saved else None, "foreign": "foreign"}[which]
            self._save_state(delivery, {"n": len(saved)}, etag)

    def _save_state(self, delivery: HeldDelivery, document: dict[str, int], etag: str | None) -> None:
        """Save a document with the given ETag. Without one, the message sends the ETag that it knows."""
        assert delivery.message is not None
        record = self.model.held_by(delivery.ref, delivery.receipt, self._now)
        if record is None:
            with pytest.raises(StaleLease):
                delivery.message.save_state(document, etag=etag)
        elif (etag or delivery.etag) != record.etag:
            with pytest.raises(Conflict):
                delivery.message.save_state(document, etag=etag)
        else:
            saved = delivery.message.save_state(document, etag=etag)
            assert saved is not None
            assert saved not in self.etags[record.id]
            self.etags[record.id].append(saved)
            delivery.etag = record.etag = saved
            record.document = document

    @precondition(lambda self: any(delivery.message for delivery in self.deliveries))
    @rule(pick=choices.picks, stale=choices.mostly_current, percent=st.integers(0, 100))
    def progress(self, pick: int, stale: bool, percent: int) -> None:
        delivery = self._pick(pick, stale, connected=True)
        assert delivery.message is not None
        record = self.model.held_by(delivery.ref, delivery.receipt, self._now)
        if record is None:
            with pytest.raises(StaleLease):
                delivery.message.progress(percent)
        else:
            delivery.message.progress(percent)
            record.progress = percent

    # --- Steps ---------------------------------------------------------------------------------------------------

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
        held: list[HeldDelivery],
        error: str | None = None,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
    ) -> None:
        """Give verdicts in one call, on the receipts that belong to the queue of the first one."""
        ref = held[0].ref
        held = [delivery for delivery in held if delivery.ref == ref]
        queue, receipts = self._queue(ref), [delivery.receipt for delivery in held]
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
        for delivery, result in zip(held, results, strict=True):
            self._note_settled(delivery, result, verdict, error, delay_ms, lease_ms)

    def _note_settled(
        self,
        delivery: HeldDelivery,
        result: Result,
        verdict: str,
        error: str | None,
        delay_ms: int | None,
        lease_ms: int | None = None,
    ) -> None:
        assert result.snowflake == delivery.id
        record = self.model.held_by(delivery.ref, delivery.receipt, self._now)
        outcome = ModelOutcome(False) if record is None else self._judge(verdict, record, error, delay_ms, lease_ms)
        assert ModelOutcome(result.ok, result.state, result.retry_at, result.lease_expires_at) == outcome
        assert result.error == (None if outcome.ok else StaleLease.code)
        if outcome.ok:
            assert result.correlation_id == (self.model.correlation_ids[delivery.id] or MessageId(delivery.id))

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

    def _end_ttls(self, ref: Ref) -> None:
        """Update the model with the TTLs that the claim has ended. Without a sweep, the store chooses how many."""
        for record in self.model.messages_of(ref, "ready"):
            if not record.is_over(self._now):
                continue
            try:
                has_ended = self._queue(ref).get(record.id).state == "failed"
            except MessageNotFound:
                has_ended = True
            if has_ended:
                self.model.end_by_ttl(record, self._now)


def _verdict_document(delivery: HeldDelivery, verdict: str, error: str | None, delay_ms: int | None) -> dict[str, Any]:
    if verdict in ("ack", "release"):
        return {"receipt": delivery.receipt, "verdict": verdict}
    return {
        "receipt": delivery.receipt,
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
