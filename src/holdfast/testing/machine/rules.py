"""Rules of the queue machine for time, operators and crashes. `work_rules.py` has those for producers and consumers."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast.model.answers import BulkResult
from holdfast.model.errors import InvalidArgument, MessageNotFound
from holdfast.model.ids import MessageId
from holdfast.server.embedded import Embedded
from holdfast.testing.machine import choices
from holdfast.testing.machine.queue_model import ModelMessage, Ref
from holdfast.testing.machine.work_rules import WorkRules


class QueueMachine(WorkRules):
    """A state machine over two tenants with two queues each.

    Time moves only by rules and calls no alarms, so sweeps are rules too.
    """

    # --- Time ----------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 1, 500, 999, 1_000, 2_000, 5_000, 60_000]))
    def step(self, ms: int) -> None:
        self.clock.step_to(self._now + ms)

    @precondition(lambda self: self.model.instants(self._now))
    @rule(which=st.integers(0, 2), off_ms=st.sampled_from([-1, 0, 0]))
    def step_to_an_instant(self, which: int, off_ms: int) -> None:
        """Step to the instant at which a lease, a delay, a TTL or a window ends, or to 1 ms before it."""
        self._step_to_an_instant(which, off_ms)

    @rule(which=st.sampled_from([None, None, 0, 1, 2]))
    def sweep(self, which: int | None) -> None:
        """Sweep now, or at an instant at which there is something to sweep."""
        if which is not None and self.model.instants(self._now):
            self._step_to_an_instant(which, 0)
        sweeper = cast(Embedded, self.hf._inner._transport).core.sweeper
        passes = 0
        while self.hf._driver.run(sweeper.sweep_once()):
            passes += 1
            assert passes < 100, "a sweep still finds changes after 100 passes"
        self.model.sweep(self._now)

    # --- Operators -----------------------------------------------------------------------------------------------

    @rule(ref=choices.refs, changes=choices.policies)
    def set_policy(self, ref: Ref, changes: dict[str, Any]) -> None:
        self._set_policy(ref, changes)

    @rule(ref=choices.refs, is_paused=st.sampled_from([False, False, True]))
    def pause(self, ref: Ref, is_paused: bool) -> None:
        if is_paused:
            self._queue(ref).pause()
            self.model.paused.add(ref)
        else:
            self._queue(ref).resume()
            self.model.paused.discard(ref)

    @precondition(lambda self: self.model.records)
    @rule(ref=choices.refs, state=st.sampled_from(["ready", "failed"]))
    def purge(self, ref: Ref, state: str) -> None:
        purged = self._queue(ref).purge(state)
        self._change(purged, ref, state, {}, lambda record: self.model.remove(record, self._now))

    @precondition(lambda self: self.model.records)
    @rule(ref=choices.refs, which=st.data())
    def cancel(self, ref: Ref, which: st.DataObject) -> None:
        chosen = self._draw_filter(which, ref)
        cancelled = self._queue(ref).cancel(chosen)
        self._change(cancelled, ref, "ready", chosen, lambda record: self.model.remove(record, self._now))

    @precondition(lambda self: self.model.records)
    @rule(ref=choices.refs, which=st.data(), priority=choices.priorities)
    def reprioritise(self, ref: Ref, which: st.DataObject, priority: int) -> None:
        def change(record: ModelMessage) -> None:
            record.priority = priority

        chosen = self._draw_filter(which, ref)
        self._change(self._queue(ref).reprioritise(priority, chosen), ref, "ready", chosen, change)

    @precondition(lambda self: self.model.records)
    @rule(ref=choices.refs, to=choices.refs, which=st.data(), state=st.sampled_from(["ready", "ready", "failed"]))
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
    @rule(pick=choices.picks, which=st.data(), dry_run=st.sampled_from([False, False, True]))
    def redrive(self, pick: int, which: st.DataObject, dry_run: bool) -> None:
        ref = self._pick_failed(pick).ref
        chosen = self._draw_filter(which, ref)
        redriven = self._queue(ref).redrive(chosen, dry_run=dry_run)
        if dry_run:
            assert redriven == BulkResult(len(self.model.select(ref, "failed", chosen, self._now)), 0)
        else:
            self._change(redriven, ref, "failed", chosen, lambda record: self.model.redrive(record, self._now))

    @precondition(lambda self: any(record.state == "failed" for record in self.model.records.values()))
    @rule(pick=choices.picks, payload=st.binary(max_size=8))
    def redrive_edited(self, pick: int, payload: bytes) -> None:
        record = self._pick_failed(pick)
        edit = {"id": str(MessageId(record.id)), "payload": payload}
        assert self._queue(record.ref).redrive(edit=edit) == BulkResult(1, 1)
        record.payload = payload
        self.model.redrive(record, self._now)

    @precondition(lambda self: self.model.events)
    @rule(pick=choices.picks, ref=choices.refs, elsewhere=st.sampled_from([False, False, True]))
    def remove(self, pick: int, ref: Ref, elsewhere: bool) -> None:
        """Remove any message seen so far, in any state. A message that is gone or in another queue is not found."""
        id = list(self.model.events)[pick % len(self.model.events)]
        record = self.model.records.get(id)
        target = ref if record is None or elsewhere else record.ref
        if record is not None and record.ref == target:
            self._queue(target).remove(id)
            self.model.remove(record, self._now)
        else:
            with pytest.raises(MessageNotFound):
                self._queue(target).remove(id)

    # --- A crash -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.can_crash)
    @rule()
    def crash_and_reopen(self) -> None:
        """Crash: no acknowledged change is lost, and no version decreases. A version may increase by more than one."""
        self.hf = self._open(self.reopen())
        for delivery in self.deliveries:
            delivery.message = None
        for record in self.model.records.values():
            version = self._queue(record.ref).get(record.id).version
            assert version >= record.version
            # A lease that survived the crash still has the version of its receipt.
            if record.state != "in_flight":
                record.version = version

    # --- Steps ---------------------------------------------------------------------------------------------------

    def _draw_filter(self, data: st.DataObject, ref: Ref) -> dict[str, Any]:
        """Draw a filter that matches everything or that has one field."""
        ids = [record.id for record in self.model.messages_of(ref)]
        fields: list[st.SearchStrategy[dict[str, Any]]] = [
            st.just({}),
            st.fixed_dictionaries({"priority": choices.priorities}),
            st.fixed_dictionaries({"headers": st.fixed_dictionaries({"colour": choices.colours})}),
            st.fixed_dictionaries({"error_contains": st.sampled_from(["bo", "ang", "nothing"])}),
            st.fixed_dictionaries({"older_than_ms": st.sampled_from([0, 0, 1, 1_000])}),
        ]
        if ids:
            fields.append(st.fixed_dictionaries({"ids": st.lists(st.sampled_from(ids), max_size=2)}))
        chosen: dict[str, Any] = data.draw(st.one_of(fields), label="filter")
        return chosen

    def _change(
        self, changed: BulkResult, ref: Ref, state: str, which: dict[str, Any], change: Callable[[ModelMessage], None]
    ) -> None:
        meant = self.model.select(ref, state, which, self._now)
        assert changed == BulkResult(len(meant), len(meant))
        for record in meant:
            change(record)
