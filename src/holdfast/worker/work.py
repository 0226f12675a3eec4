"""One message that is being handled, and the slot that it occupies."""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.client.message import AsyncMessage
from holdfast.model.answers import Result
from holdfast.model.errors import StaleLease
from holdfast.model.requests import Verdict
from holdfast.worker.outcomes import LeaseLost, Overdue, Stopped
from holdfast.worker.queue_numbers import QueueFields


class WorkMessage(AsyncMessage):
    """A message whose methods raise `LeaseLost`, without calling the server, once its lease is known to be lost."""

    __slots__ = ()

    async def _settle(self, verdict: Verdict) -> Result:
        self.check_held()
        try:
            return await super()._settle(verdict)
        except StaleLease as error:
            raise LeaseLost(error.message, **error.facts) from None

    async def read_part(self, offset: int, limit: int) -> bytes:
        self.check_held()
        try:
            return await super().read_part(offset, limit)
        except StaleLease as error:
            raise LeaseLost(error.message, **error.facts) from None

    async def save_state(self, document: Any, etag: str | None = None) -> str | None:
        self.check_held()
        return await super().save_state(document, etag)

    async def progress(self, percent: float, text: str = "") -> None:
        self.check_held()
        await super().progress(percent, text)

    def check_held(self) -> None:
        """Raise `LeaseLost` if the lease is known to be lost."""
        if self._held.lost is not None:
            raise LeaseLost(f"this worker no longer holds message {self.id}: {self._held.lost}", id=str(self.id))


class InterruptReason(StrEnum):
    """The reason for which a handler is told to stop."""

    LOST = "lost"
    TIMEOUT = "timeout"
    STOPPING = "stopping"


class Interruption(NamedTuple):
    """The fact that a handler was told to stop, with the reason as text."""

    reason: InterruptReason
    text: str

    def exception(self) -> Exception:
        """Return the exception that a cancelled handler finds in the `args` of its CancelledError."""
        match self.reason:
            case InterruptReason.LOST:
                return LeaseLost(self.text)
            case InterruptReason.TIMEOUT:
                return Overdue(self.text)
            case InterruptReason.STOPPING:
                return Stopped(self.text)


class Work:
    """One message in hand: its lease, and whether its handler was told to stop."""

    __slots__ = ("_queue_fields", "claimed_at", "interrupted", "interruption", "is_warned", "lease_until", "message")

    def __init__(self, message: WorkMessage, claimed_at: int, lease_ms: int, queue_fields: QueueFields) -> None:
        self.message = message
        self._queue_fields = queue_fields
        self.claimed_at = claimed_at
        # By this process's clock, and used only while the server is unreachable. The server decides.
        self.lease_until = claimed_at + lease_ms
        self.interruption: Interruption | None = None
        self.interrupted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_warned = False

    def interrupt(self, reason: InterruptReason, text: str) -> None:
        """Tell the handler to stop.

        The first reason counts, except that a lost lease replaces any other: no verdict may be sent after it.
        """
        if self.interruption is not None and reason is not InterruptReason.LOST:
            return
        self.interruption = Interruption(reason, text)
        # Makes the message's methods fail from now on, also in a handler thread, which cannot be stopped.
        self.message._held.lost = text
        if not self.interrupted.done():
            self.interrupted.set_result(None)

    def clear_interruption(self) -> None:
        """Forget that the handler was told to stop, because it has ended by itself. A lost lease remains."""
        if not self.is_lost:
            self.interruption = None

    def interrupt_exception(self) -> Exception:
        """Return the exception for the interrupted handler."""
        assert self.interruption is not None
        return self.interruption.exception()

    @property
    def is_lost(self) -> bool:
        """Return whether the lease is known to be lost."""
        return self.interruption is not None and self.interruption.reason is InterruptReason.LOST

    def facts(self) -> dict[str, object]:
        """Return the fields of log lines about the message."""
        message = self.message
        return {
            **self._queue_fields.fields(),
            "message_id": str(message.id),
            "attempt": message.attempt,
            "correlation_id": message.correlation_id,
        }


class Slot:
    """One of a handler's slots, in use by one message. It is freed once, and calls its consumer synchronously."""

    __slots__ = ("_freed", "_is_free")

    def __init__(self, freed: Callable[[str | None], None]) -> None:
        self._freed = freed
        self._is_free = False

    def free(self, start_error: str | None = None) -> None:
        """Free the slot for the next message. `start_error` says why this message's handler could not start."""
        if not self._is_free:
            self._is_free = True
            self._freed(start_error)
