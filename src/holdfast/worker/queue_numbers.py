"""The fields of log lines that name the queue of a handler."""

from holdfast.client.client import AsyncHoldfast
from holdfast.client.missing import read_numbers
from holdfast.clock import Clock
from holdfast.model.errors import HoldfastError
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.runtime import LoopRuntime

# A queue that is deleted and made again has another number. Lines that follow one which is written this long after the
# last look have the new one.
_KEPT_MS = 60_000
# The least time between two looks while the numbers are not known.
_AGAIN_MS = 1_000


class QueueFields:
    """The names of a queue and, once they are known, its numbers.

    The numbers are read when the worker starts. If that is long ago when a line is written, or if the queue did not
    exist, they are read again in the background, for later lines.
    """

    def __init__(self, client: AsyncHoldfast, ref: QueueRef, runtime: LoopRuntime) -> None:
        self.ref = ref
        self._client = client
        self._runtime = runtime
        self._clock: Clock = runtime.clock
        self._numbers: QueueNumbers | None = None
        self._is_reading = False
        self._due_at = 0

    def fields(self) -> dict[str, object]:
        """Return the fields `tenant` and `queue`, and `tenant_id` and `queue_id` if they are known."""
        if self._clock.now_ms() >= self._due_at and not self._is_reading:
            self._is_reading = True
            self._runtime.spawn(self._read_again())
        return {**self.ref._asdict(), **({} if self._numbers is None else self._numbers._asdict())}

    async def read(self) -> bool:
        """Read the numbers. Return False if the queue does not exist.

        The numbers stay as they are if the server does not say them.
        """
        self._due_at = self._clock.now_ms() + _AGAIN_MS
        try:
            self._numbers = await read_numbers(self._client._connected(), self.ref)
        except HoldfastError:
            return True
        if self._numbers is None:
            return False
        self._due_at = self._clock.now_ms() + _KEPT_MS
        return True

    async def _read_again(self) -> None:
        try:
            await self.read()
        finally:
            self._is_reading = False
