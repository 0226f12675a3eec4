"""Any store against the model: random calls of the blocking API, and after each one everything that can be seen.

class MyStoreMachine(QueueMachine):
    def make_store(self, dice: Dice) -> Store:
        return MyStore(dice)

def test_my_store_does_what_the_model_does() -> None:
    run_state_machine_as_test(MyStoreMachine)
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.client.blocking import BlockingMessage, Holdfast, Queue
from holdfast.dice import Dice, SeededDice
from holdfast.model.answers import Changed, Info, Stats
from holdfast.model.errors import Conflict, InvalidArgument, MessageNotFound, StaleLease
from holdfast.model.ids import MessageId
from holdfast.model.message import NewMessage, Receipt
from holdfast.server.embedded import Embedded, open_blocking
from holdfast.stores.contract import Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.queue_model import Outcome, QueueModel, Record, Ref

REFS: list[Ref] = [("acme", "mail"), ("acme", "pay"), ("zeta", "mail"), ("zeta", "pay")]
ROLL = 0.5

_EVERYTHING = 10_000
_FAILED_REASONS = {"retries", "final", "lease_expired", "ttl"}


class FixedDice:
    """Tokens of a seed, and always the same roll: so every backoff is known beforehand."""

    def __init__(self, seed: int) -> None:
        self.tokens = SeededDice(seed).tokens

    def roll(self) -> float:
        return ROLL


@dataclass(slots=True)
class Handle:
    """One delivery, current or long stale, as its claimer keeps it."""

    id: int
    ref: Ref
    receipt: str
    etag: str | None
    # None after a crash: the connection it came by is gone, the receipt still counts.
    message: BlockingMessage | None


# Few values, and multiples of each other, so that boundaries meet; the first queue often, so that they meet there.
_refs = st.sampled_from([REFS[0]] * 5 + [REFS[1]] * 2 + REFS[2:])
_priorities = st.sampled_from([100, 100, 100, 1, 200])
_colours = st.sampled_from(["red", "blue"])
_errors = st.sampled_from([None, "boom", "bang"])
_delays = st.sampled_from([0, 1, 1_000, 2_000])
_leases = st.sampled_from([None, 1, 1_000, 2_000, 4_000])
_limits = st.sampled_from([1, 1, 2, 3, 10])
_verdicts = st.sampled_from(["ack", "ack", "nack", "nack", "final", "defer", "release"])
_mostly_current = st.sampled_from([False, False, True])
_picks = st.integers(0, 1 << 16)


def _seldom(*values: Any) -> st.SearchStrategy[Any]:
    """One of the values, or more often None."""
    return st.sampled_from([*values, *[None] * 5 * len(values)])


_drafts = st.fixed_dictionaries(
    {
        "payload": st.binary(max_size=4),
        "priority": _priorities,
        "delay_ms": _seldom(1, 1_000, 2_000),
        "ttl_ms": _seldom(1, 1_000, 2_000, 3_000),
        "key": st.sampled_from([None] * 5 + ["k1", "k2", "k3", "k4"]),
        "group": st.sampled_from([None, None, "g", "g", "h"]),
        "max_retries": st.sampled_from([None, None, 0, 1, 2]),
        "headers": st.sampled_from([None, {"colour": "red"}, {"colour": "blue"}]),
        "correlation_id": _seldom("ours"),
    },
).map(lambda draft: {name: value for name, value in draft.items() if value is not None})

_policies = st.fixed_dictionaries(
    {},
    optional={
        "lease_ms": st.sampled_from([1_000, 2_000, 5_000]),
        "max_lease_ms": st.sampled_from([1_500, 3_000, 60_000]),
        "max_retries": st.integers(0, 3),
        "backoff_base_ms": st.sampled_from([0, 500, 2_000]),
        "backoff_cap_ms": st.sampled_from([0, 1_000, 30_000]),
        "ttl_ms": _seldom(1_000, 3_000),
        "on_ttl": st.sampled_from(["dead_letter", "drop"]),
        "dedup_window_ms": st.sampled_from([0, 1_000, 3_000, 86_400_000]),
        "keep_succeeded_ms": st.sampled_from([0, 1_000, 3_000]),
    },
)


class QueueMachine(RuleBasedStateMachine):
    """Two tenants with two queues each. Time moves by rule alone, and rings no alarms: sweeps are a rule too."""

    # A subclass that sets it gives `reopen` as well.
    can_crash = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.dice = FixedDice(seed=0)
        self.model = QueueModel(REFS, ROLL)
        self.handles: list[Handle] = []
        self.highest_id = 0
        self.highest_version: dict[int, int] = {}
        self.etags: dict[int, list[str]] = defaultdict(list)
        self.journal: dict[int, list[tuple[str, Ref, int, int, str | None]]] = defaultdict(list)
        self.position: str | None = None
        self.last_seq: dict[int, int] = {}
        self.hf = self._open(self.make_store(self.dice))
        for ref in REFS:
            self._queue(ref).set_policy()

    # --- What a store's own machine gives ------------------------------------------------------------------------

    def make_store(self, dice: Dice) -> Store:
        """A fresh, empty store."""
        raise NotImplementedError

    def reopen(self) -> Store:
        """End the store as a killed process would, and make one that opens what is left."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.hf.close()

    # --- Enqueue and claim ---------------------------------------------------------------------------------------

    @initialize(drafts=st.lists(_drafts, min_size=3, max_size=8), changes=_policies)
    def begin(self, drafts: list[dict[str, Any]], changes: dict[str, Any]) -> None:
        """Begin with something to claim: most of what is worth seeing begins with a claim."""
        self._set_policy(REFS[0], changes)
        self._enqueue(REFS[0], drafts)

    @rule(ref=_refs, drafts=st.lists(_drafts, min_size=1, max_size=4))
    def enqueue(self, ref: Ref, drafts: list[dict[str, Any]]) -> None:
        self._enqueue(ref, drafts)

    @precondition(lambda self: self.model.keys)
    @rule(pick=_picks, prefers_gone=st.booleans(), off_ms=st.sampled_from([None, None, -1, 0]))
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

    @rule(ref=_refs, limit=_limits, lease_ms=_leases, with_state=st.booleans())
    def claim(self, ref: Ref, limit: int, lease_ms: int | None, with_state: bool) -> None:
        self._claim(ref, limit, lease_ms, with_state)

    @precondition(lambda self: self.model.records)
    @rule(pick=_picks, limit=_limits, lease_ms=_leases, with_state=st.booleans())
    def claim_where_something_is(self, pick: int, limit: int, lease_ms: int | None, with_state: bool) -> None:
        self._claim(self._pick_record(pick).ref, limit, lease_ms, with_state)

    @precondition(lambda self: self.model.instants(self._now))
    @rule(pick=_picks, limit=_limits, which=st.integers(0, 2), off_ms=st.sampled_from([-1, 0, 0]))
    def claim_at_an_instant(self, pick: int, limit: int, which: int, off_ms: int) -> None:
        self._step_to_an_instant(which, off_ms)
        if self.model.records:
            self._claim(self._pick_record(pick).ref, limit, None, False)

    @precondition(lambda self: self.model.records)
    @rule(pick=_picks, verdict=_verdicts, error=_errors, again=st.booleans())
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
        messages = self._queue(ref).claim(limit, **options)
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

    # --- Verdicts, with any receipt ------------------------------------------------------------------------------

    @precondition(lambda self: self.handles)
    @rule(
        picks=st.lists(_picks, min_size=1, max_size=3),
        stale=_mostly_current,
        verdict=_verdicts,
        error=_errors,
        delay_ms=st.one_of(st.none(), _delays),
    )
    def settle(self, picks: list[int], stale: bool, verdict: str, error: str | None, delay_ms: int | None) -> None:
        self._settle(verdict, [self._pick(pick, stale) for pick in picks], error, delay_ms)

    @precondition(lambda self: any(record.receipt for record in self.model.records.values()))
    @rule(pick=_picks, off_ms=st.sampled_from([-1, 0, 0]), by_ttl=st.booleans(), verdict=_verdicts)
    def settle_at_the_end(self, pick: int, off_ms: int, by_ttl: bool, verdict: str) -> None:
        """At the very end of its lease or of its TTL, or just short of it."""
        held = [record for record in self.model.records.values() if record.receipt]
        mortal = [record for record in held if record.expires_at] if by_ttl else []
        record = (mortal or held)[pick % len(mortal or held)]
        ends_at = record.expires_at if mortal and record.expires_at else record.lease_expires_at
        self.clock.step_to(max(self._now, ends_at + off_ms))
        self._settle(verdict, [handle for handle in self.handles if handle.receipt == record.receipt])

    @precondition(lambda self: self.handles)
    @rule(pick=_picks, stale=_mostly_current, lease_ms=_leases)
    def extend(self, pick: int, stale: bool, lease_ms: int | None) -> None:
        self._settle("extend", [self._pick(pick, stale)], lease_ms=lease_ms)

    @precondition(lambda self: self.handles)
    @rule(pick=_picks, ref=_refs, verdict=st.sampled_from(["ack", "nack", "release"]))
    def settle_in_some_queue(self, pick: int, ref: Ref, verdict: str) -> None:
        """A receipt counts in the queue of its message alone."""
        handle = self._pick(pick, stale=False)
        self._settle(verdict, [Handle(handle.id, ref, handle.receipt, None, None)])

    @precondition(lambda self: self.handles)
    @rule(
        pick=_picks, part=st.sampled_from(["token", "version"]), verdict=st.sampled_from(["ack", "release", "extend"])
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
        pick=_picks,
        stale=_mostly_current,
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
    @rule(pick=_picks, stale=_mostly_current, percent=st.integers(0, 100))
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

    # --- Time ----------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 1, 500, 999, 1_000, 2_000, 5_000, 60_000]))
    def step(self, ms: int) -> None:
        self.clock.step_to(self._now + ms)

    @precondition(lambda self: self.model.instants(self._now))
    @rule(which=st.integers(0, 2), off_ms=st.sampled_from([-1, 0, 0]))
    def step_to_an_instant(self, which: int, off_ms: int) -> None:
        """To when a lease, a delay, a TTL or a window ends, exactly, or just short of it."""
        self._step_to_an_instant(which, off_ms)

    def _step_to_an_instant(self, which: int, off_ms: int) -> None:
        instants = self.model.instants(self._now)
        self.clock.step_to(max(self._now, instants[min(which, len(instants) - 1)] + off_ms))

    @rule(which=st.sampled_from([None, None, 0, 1, 2]))
    def sweep(self, which: int | None) -> None:
        """Now, or at the instant at which there is something to sweep."""
        if which is not None and self.model.instants(self._now):
            self._step_to_an_instant(which, 0)
        sweeper = cast(Embedded, self.hf._inner._transport).core.sweeper
        passes = 0
        while self.hf._driver.run(sweeper.sweep_once()):
            passes += 1
            assert passes < 100, "a sweep always finds something to do"
        self.model.sweep(self._now)

    # --- Operators -----------------------------------------------------------------------------------------------

    @rule(ref=_refs, changes=_policies)
    def set_policy(self, ref: Ref, changes: dict[str, Any]) -> None:
        self._set_policy(ref, changes)

    def _set_policy(self, ref: Ref, changes: dict[str, Any]) -> None:
        policy = self._queue(ref).set_policy(**changes)
        self.model.policies[ref].update(changes)
        assert {name: getattr(policy, name) for name in self.model.policies[ref]} == self.model.policies[ref]

    @rule(ref=_refs, is_paused=st.sampled_from([False, False, True]))
    def pause(self, ref: Ref, is_paused: bool) -> None:
        if is_paused:
            self._queue(ref).pause()
            self.model.paused.add(ref)
        else:
            self._queue(ref).resume()
            self.model.paused.discard(ref)

    @precondition(lambda self: self.model.records)
    @rule(ref=_refs, state=st.sampled_from(["ready", "failed"]))
    def purge(self, ref: Ref, state: str) -> None:
        purged = self._queue(ref).purge(state)
        self._change(purged, ref, state, {}, lambda record: self.model.remove(record, self._now))

    @precondition(lambda self: self.model.records)
    @rule(ref=_refs, which=st.data())
    def cancel(self, ref: Ref, which: st.DataObject) -> None:
        chosen = self._draw_filter(which, ref)
        cancelled = self._queue(ref).cancel(chosen)
        self._change(cancelled, ref, "ready", chosen, lambda record: self.model.remove(record, self._now))

    @precondition(lambda self: self.model.records)
    @rule(ref=_refs, which=st.data(), priority=_priorities)
    def reprioritise(self, ref: Ref, which: st.DataObject, priority: int) -> None:
        def change(record: Record) -> None:
            record.priority = priority

        chosen = self._draw_filter(which, ref)
        self._change(self._queue(ref).reprioritise(priority, chosen), ref, "ready", chosen, change)

    @precondition(lambda self: self.model.records)
    @rule(ref=_refs, to=_refs, which=st.data(), state=st.sampled_from(["ready", "ready", "failed"]))
    def move(self, ref: Ref, to: Ref, which: st.DataObject, state: str) -> None:
        tenant, queue = to
        if to == ref:
            with pytest.raises(InvalidArgument):
                self._queue(ref).move(queue, tenant=tenant, state=state)
            return
        chosen = self._draw_filter(which, ref)
        moved = self._queue(ref).move(queue, tenant=tenant, filter=chosen, state=state)
        self._change(moved, ref, state, chosen, lambda record: self.model.move(record, to, self._now))

    @precondition(lambda self: any(record.state == "failed" for record in self.model.records.values()))
    @rule(pick=_picks, which=st.data(), dry_run=st.sampled_from([False, False, True]))
    def redrive(self, pick: int, which: st.DataObject, dry_run: bool) -> None:
        ref = self._pick_failed(pick).ref
        chosen = self._draw_filter(which, ref)
        redriven = self._queue(ref).redrive(chosen, dry_run=dry_run)
        if dry_run:
            assert redriven == Changed(len(self.model.select(ref, "failed", chosen, self._now)), 0)
        else:
            self._change(redriven, ref, "failed", chosen, lambda record: self.model.redrive(record, self._now))

    @precondition(lambda self: any(record.state == "failed" for record in self.model.records.values()))
    @rule(pick=_picks, payload=st.binary(max_size=8))
    def redrive_edited(self, pick: int, payload: bytes) -> None:
        record = self._pick_failed(pick)
        edit = {"id": str(MessageId(record.id)), "payload": payload}
        assert self._queue(record.ref).redrive(edit=edit) == Changed(1, 1)
        record.payload = payload
        self.model.redrive(record, self._now)

    @precondition(lambda self: self.model.events)
    @rule(pick=_picks, ref=_refs, elsewhere=st.sampled_from([False, False, True]))
    def remove(self, pick: int, ref: Ref, elsewhere: bool) -> None:
        """Any message ever seen: in whatever state, in flight too; gone, or in another queue, it is not found."""
        id = list(self.model.events)[pick % len(self.model.events)]
        record = self.model.records.get(id)
        target = ref if record is None or elsewhere else record.ref
        if record is not None and record.ref == target:
            self._queue(target).remove(id)
            self.model.remove(record, self._now)
        else:
            with pytest.raises(MessageNotFound):
                self._queue(target).remove(id)

    @precondition(lambda self: self.can_crash)
    @rule()
    def crash_and_reopen(self) -> None:
        """Nothing that was answered is lost, and no version goes back; it may jump."""
        self.hf = self._open(self.reopen())
        for handle in self.handles:
            handle.message = None
        for record in self.model.records.values():
            version = self._queue(record.ref).get(record.id).version
            assert version >= record.version
            # The receipt of a lease that outlived the crash has the version it was given.
            if record.state != "in_flight":
                record.version = version

    # --- What can be seen ----------------------------------------------------------------------------------------

    @invariant()
    def every_message_is_as_the_model_says(self) -> None:
        for ref in REFS:
            queue = self._queue(ref)
            records = self.model.of(ref)
            assert [info.snowflake for info in queue.list(limit=_EVERYTHING)] == [record.id for record in records]
            for record in records:
                _check_info(queue.get(record.id, payload=True), record)

    @invariant()
    def every_count_is_as_the_model_says(self) -> None:
        for tenant in dict.fromkeys(tenant for tenant, _ in REFS):
            every = []
            for ref in (ref for ref in REFS if ref[0] == tenant):
                stats = self._queue(ref).stats()
                assert _counts(stats) == self._expected_counts(ref)
                assert stats.paused == (ref in self.model.paused)
                every.append(_counts(stats))
            total = _counts(self.hf.tenant(tenant).stats())
            assert total == {
                name: (max if name == "oldest_ready_age_ms" else sum)(each[name] for each in every) for name in total
            }

    @invariant()
    def peek_shows_what_claims_would_take(self) -> None:
        for ref in REFS:
            shown = [info.snowflake for info in self._queue(ref).peek(_EVERYTHING)]
            assert shown == [record.id for record in self.model.due(ref, self._now)]

    @invariant()
    def the_journal_has_each_transition_once(self) -> None:
        events = self.hf.journal(self.position, _EVERYTHING)
        self.position = events.next
        for event in events:
            assert event.seq > self.last_seq.get(event.shard, -1)
            self.last_seq[event.shard] = event.seq
            reason = event.reason if event.event == "failed" else None
            self.journal[event.snowflake].append(
                (str(event.event), (event.tenant, event.queue), event.at, event.attempt, reason)
            )
        expected = {
            id: [(name, *rest, reason if name == "failed" else None) for name, *rest, reason in history]
            for id, history in self.model.events.items()
        }
        assert dict(self.journal) == expected

    # --- Parts ---------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        return self.clock.now_ms()

    def _open(self, store: Store) -> Holdfast:
        return open_blocking("", {}, clock=self.clock, dice=self.dice, store=store)

    def _queue(self, ref: Ref) -> Queue:
        return self.hf.queue(ref[1], tenant=ref[0])

    def _pick(self, pick: int, stale: bool, connected: bool = False) -> Handle:
        """Some handle: one that holds its lease where there is one, or any of them."""
        known = [handle for handle in self.handles if handle.message or not connected]
        current = [each for each in known if self.model.held_by(each.ref, each.receipt, self._now)]
        chosen = known if stale or not current else current
        return chosen[pick % len(chosen)]

    def _pick_record(self, pick: int) -> Record:
        return list(self.model.records.values())[pick % len(self.model.records)]

    def _pick_failed(self, pick: int) -> Record:
        failed = [record for record in self.model.records.values() if record.state == "failed"]
        return failed[pick % len(failed)]

    def _draw_filter(self, data: st.DataObject, ref: Ref) -> dict[str, Any]:
        """Everything, or by one of the fields a filter has."""
        ids = [record.id for record in self.model.of(ref)]
        fields: list[st.SearchStrategy[dict[str, Any]]] = [
            st.just({}),
            st.fixed_dictionaries({"priority": _priorities}),
            st.fixed_dictionaries({"headers": st.fixed_dictionaries({"colour": _colours})}),
            st.fixed_dictionaries({"error_contains": st.sampled_from(["bo", "ang", "nothing"])}),
            st.fixed_dictionaries({"older_than_ms": st.sampled_from([0, 0, 1, 1_000])}),
        ]
        if ids:
            fields.append(st.fixed_dictionaries({"ids": st.lists(st.sampled_from(ids), max_size=2)}))
        chosen: dict[str, Any] = data.draw(st.one_of(fields), label="filter")
        return chosen

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
        assert [result.snowflake for result in results] == [handle.id for handle in held]
        for handle, result in zip(held, results, strict=True):
            record = self.model.held_by(ref, handle.receipt, self._now)
            outcome = Outcome(False) if record is None else self._judge(verdict, record, error, delay_ms, lease_ms)
            assert Outcome(result.ok, result.state, result.retry_at, result.lease_expires_at) == outcome
            assert result.error == (None if outcome.ok else StaleLease.code)
            if outcome.ok:
                assert result.correlation_id == (self.model.correlation_ids[handle.id] or MessageId(handle.id))

    def _judge(
        self, verdict: str, record: Record, error: str | None, delay_ms: int | None, lease_ms: int | None
    ) -> Outcome:
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

    def _change(
        self, changed: Changed, ref: Ref, state: str, which: dict[str, Any], change: Callable[[Record], None]
    ) -> None:
        meant = self.model.select(ref, state, which, self._now)
        assert changed == Changed(len(meant), len(meant))
        for record in meant:
            change(record)

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

    def _check_delivery(self, message: BlockingMessage, record: Record) -> None:
        assert "succeeded" not in {event for event, *_ in self.model.events[record.id]}, "acked, and delivered again"
        assert message.version > self.highest_version.get(record.id, 0), "the version did not grow"
        self.highest_version[record.id] = message.version
        if self.can_crash:
            record.version = max(record.version, message.version)
        assert message.version == record.version
        assert message.receipt not in {handle.receipt for handle in self.handles}
        assert message.attempt == record.attempt
        assert message.payload == record.payload
        assert message.headers == record.headers
        assert message.priority == record.priority
        assert message.group == record.group
        assert message.enqueued_at == record.enqueued_at
        assert message.lease_expires_at == record.lease_expires_at
        assert message.correlation_id == (record.correlation_id or MessageId(record.id))

    def _expected_counts(self, ref: Ref) -> dict[str, int]:
        ready = self.model.of(ref, "ready")
        due = [record.visible_at for record in ready if record.visible_at <= self._now]
        return {
            "ready": len(due),
            "delayed": len(ready) - len(due),
            "in_flight": len(self.model.of(ref, "in_flight")),
            "failed": len(self.model.of(ref, "failed")),
            "bytes": sum(record.bytes for record in self.model.of(ref)),
            "oldest_ready_age_ms": self._now - min(due, default=self._now),
        }


def _new_message(draft: dict[str, Any]) -> NewMessage:
    options = dict(draft)
    payload = options.pop("payload")
    for name in ("delay", "ttl"):
        if (ms := options.pop(f"{name}_ms", None)) is not None:
            options[name] = f"{ms}ms"
    return NewMessage(payload, **options)


def _counts(stats: Stats) -> dict[str, int]:
    names = ("ready", "delayed", "in_flight", "failed", "bytes", "oldest_ready_age_ms")
    return {name: getattr(stats, name) for name in names}


def _check_info(info: Info, record: Record) -> None:
    for name in ("state", "priority", "attempt", "failures", "expiries", "releases", "version", "enqueued_at"):
        assert getattr(info, name) == getattr(record, name), name
    for name in ("payload", "headers", "group", "bytes", "settled_at"):
        assert getattr(info, name) == getattr(record, name), name
    assert info.last_error == record.error
    assert info.correlation_id == (record.correlation_id or info.id)
    assert (info.progress.percent if info.progress else None) == record.progress
    assert info.lease_expires_at == (record.lease_expires_at or None)
    if record.state == "failed":
        assert info.reason == record.reason
    else:
        assert info.reason not in _FAILED_REASONS
    if record.state in ("ready", "in_flight"):
        assert info.visible_at == record.visible_at
        assert info.expires_at == record.expires_at
