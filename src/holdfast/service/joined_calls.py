"""Calls that several callers make on one queue at the same time, joined into one call of the store."""

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.model.errors import HoldfastError, Refused, Throttled
from holdfast.model.message import MAX_BATCH, Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import Verdict
from holdfast.runtime import Runtime, Ticket

In = TypeVar("In")
Out = TypeVar("Out")

# The largest total payload of joined calls. Larger calls gain nothing from being joined.
_MAX_BYTES = 1 << 20

Call = Callable[[QueueRef, list[In]], Coroutine[Any, Any, list[Out]]]


class _WaitingCall(NamedTuple, Generic[In, Out]):
    items: list[In]
    ticket: Ticket[list[Out]]


class JoinedCalls(Generic[In, Out]):
    """The calls of one operation.

    The first call on a queue in a turn of the event loop goes to the store at once. Further calls on the queue in the
    same turn go to the store together at its end, in their order: one call with ten messages costs the store a quarter
    of ten calls. A joined call that the store refuses is made again as separate calls, so that each caller gets its own
    error.

    Calls of other turns are not waited for. With fsync they can be added to the next commit while the previous one is
    on its way to the disk, and holding them back costs more than it saves.
    """

    def __init__(self, runtime: Runtime, call: Call[In, Out], weigh: Callable[[list[In]], int | None]) -> None:
        """`call` carries out all items or none, or returns a result for each.

        `weigh` returns the size of a call's items in bytes, or None for a call that must not be joined.
        """
        self._runtime = runtime
        self._call = call
        self._weigh = weigh
        # By queue with a call in this turn: the further calls, which wait for its end.
        self._waiting: dict[QueueRef, list[_WaitingCall[In, Out]]] = {}

    @property
    def waiting_queues(self) -> int:
        """Return the number of queues with calls in this turn."""
        return len(self._waiting)

    async def add(self, ref: QueueRef, items: list[In]) -> list[Out]:
        """Carry out a call, perhaps together with others, and return one result for each item."""
        others = self._waiting.get(ref)
        if others is None:
            self._waiting[ref] = []
            self._runtime.at_turn_end(partial(self._end_turn, ref))
            return await self._call(ref, items)
        waiting: _WaitingCall[In, Out] = _WaitingCall(items, self._runtime.ticket())
        others.append(waiting)
        return await waiting.ticket

    def _end_turn(self, ref: QueueRef) -> None:
        for batch in self._batches(self._waiting.pop(ref)):
            self._runtime.spawn(self._run(ref, batch))

    def _batches(self, calls: list[_WaitingCall[In, Out]]) -> Iterator[list[_WaitingCall[In, Out]]]:
        """Yield calls that go to the store together, in order. Skip callers that have left meanwhile."""
        batch: list[_WaitingCall[In, Out]] = []
        items = size = 0
        for each in calls:
            if each.ticket.done():
                continue
            weight = self._weigh(each.items)
            if batch and (weight is None or items + len(each.items) > MAX_BATCH or size + weight > _MAX_BYTES):
                yield batch
                batch, items, size = [], 0, 0
            batch.append(each)
            if weight is None:
                yield batch
                batch, items, size = [], 0, 0
            else:
                items, size = items + len(each.items), size + weight
        if batch:
            yield batch

    async def _run(self, ref: QueueRef, batch: list[_WaitingCall[In, Out]]) -> None:
        try:
            results = await self._call(ref, [item for each in batch for item in each.items])
        except (Refused, Throttled) as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # nothing was done
                for each in batch:
                    self._runtime.spawn(self._run(ref, [each]))
        except Exception as error:
            _fail(batch, error)
        else:
            begin = 0
            for items, ticket in batch:
                end = begin + len(items)
                if not ticket.done():
                    ticket.set_result(results[begin:end])
                begin = end


def _fail(batch: list[_WaitingCall[In, Out]], error: Exception) -> None:
    for each in batch:
        if not each.ticket.done():
            # Each caller gets its own error, because a raised error collects tracebacks and notes.
            each.ticket.set_exception(error.copy() if isinstance(error, HoldfastError) else error)


def weigh_drafts(drafts: list[Draft]) -> int | None:
    """Return the bytes of the payloads; None if a message has a key, whose rules hold within one call, or pieces."""
    size = 0
    for draft in drafts:
        if draft.key is not None or draft.pieces is not None:
            return None
        size += len(draft.payload)
    return size


def weigh_verdicts(verdicts: list[Verdict]) -> int:
    """Return 0: verdicts are small, and each has its own result."""
    return 0
