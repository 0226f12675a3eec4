"""Subscriptions on a wire without server-sent deliveries: one claim after the other, with verdicts along."""

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from msgspec.structs import replace

from holdfast.client.remote.calls import Calls
from holdfast.client.remote.tasks import Tasks
from holdfast.client.remote.unsettled import Unsettled
from holdfast.clock import steady_s
from holdfast.model.answers import Delivery, Result
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict

Claim = Callable[[QueueRef, ClaimRequest, int | None], Awaitable[list[Delivery]]]
GiveBack = Callable[[QueueRef, list[Delivery]], Any]


class PollStream:
    """What one reader of a queue holds and is about to be given: `prefetch` deliveries at most."""

    def __init__(self, ref: QueueRef, ask: ClaimRequest, prefetch: int, tasks: Tasks) -> None:
        self.ref = ref
        self._ask = ask
        self.unsettled = Unsettled(prefetch, ask.lease_ms, tasks.event())
        self.upcoming: deque[Delivery] = deque()
        self.is_over = False
        self._is_claiming = False
        self._taken_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether its next claim is about to be made: its reader has taken everything."""
        return not self.upcoming and not self._is_claiming and not self.is_over

    def ask_for(self, more: int) -> ClaimRequest:
        """Return a claim for what there is room for once so many have been settled."""
        return replace(self._ask, limit=max(1, self.unsettled.room() + more))

    @contextlib.contextmanager
    def claiming(self) -> Iterator[None]:
        """Keep others from claiming for this reader meanwhile."""
        self._is_claiming = True
        try:
            yield
        finally:
            self._is_claiming = False
            self.unsettled.tell()

    def take(self, deliveries: list[Delivery]) -> bool:
        """Return False if the reader has left: then they are not its own."""
        if self.is_over:
            return False
        self._taken_at = steady_s()
        self.unsettled.add(deliveries)
        self.upcoming.extend(deliveries)
        return True

    def next(self) -> Delivery | None:
        """Return the next delivery; None if its lease ran out while it waited, as far as this machine can tell."""
        delivery, lease_ms = self.upcoming.popleft(), self._ask.lease_ms
        is_over = lease_ms is not None and (steady_s() - self._taken_at) * 1_000 >= lease_ms
        return None if is_over else delivery

    async def wait(self) -> None:
        """Until a verdict is carried out, a lease ends or a claim has brought something."""
        await self.unsettled.wait_for_change(has_claim=self._is_claiming)


class PollStreams:
    """The streams of a client that are read now."""

    def __init__(self) -> None:
        self._streams: dict[QueueRef, set[PollStream]] = {}

    async def read(
        self, stream: PollStream, calls: Calls[Any, Any], claim: Claim, give_back: GiveBack
    ) -> AsyncIterator[Delivery]:
        """Yield deliveries for ever. What the reader did not take is given back when it leaves."""
        streams = self._streams.setdefault(stream.ref, set())
        streams.add(stream)
        try:
            while not calls.is_closed:
                if stream.upcoming:
                    if (delivery := stream.next()) is not None:
                        yield delivery
                elif not stream.is_due or not stream.unsettled.room():
                    await stream.wait()
                else:
                    with stream.claiming():
                        stream.take(await claim(stream.ref, stream.ask_for(0), None))
        finally:
            stream.is_over = True
            streams.discard(stream)
            if not streams:
                self._streams.pop(stream.ref, None)
            if stream.upcoming:
                calls.spawn(give_back(stream.ref, list(stream.upcoming)))

    def due_after(self, ref: QueueRef, verdicts: list[Verdict]) -> tuple[PollStream, int] | None:
        """Return a stream whose next claim is due and can carry these verdicts, and how many of them are its own."""
        for stream in self._streams.get(ref, ()):
            if stream.is_due and (mine := sum(map(stream.unsettled.makes_room, verdicts))):
                return stream, mine
        return None

    def note(self, ref: QueueRef, verdicts: list[Verdict], results: list[Result]) -> None:
        """Verdicts were carried out."""
        for stream in self._streams.get(ref, ()):
            stream.unsettled.note(verdicts, results)

    def let_go(self) -> None:
        for streams in list(self._streams.values()):
            for stream in list(streams):
                stream.unsettled.tell()
