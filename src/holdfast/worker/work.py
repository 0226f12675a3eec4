"""One message in a handler's hands."""

import asyncio
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.client.message import AsyncMessage
from holdfast.model.answers import Result
from holdfast.model.errors import StaleLease
from holdfast.model.requests import Verdict
from holdfast.worker.exceptions import LeaseLost, Overdue, Stopped


class WorkMessage(AsyncMessage):
    """Once its lease is known to be lost, its verbs raise `LeaseLost` without asking."""

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
        if self._held.lost is not None:
            raise LeaseLost(f"message {self.id} is no longer ours: {self._held.lost}", id=str(self.id))


class Why(StrEnum):
    """Why a handler is told to stop."""

    LOST = "lost"
    TIMEOUT = "timeout"
    STOPPING = "stopping"


class Interruption(NamedTuple):
    why: Why
    text: str

    def reason(self) -> Exception:
        """What a cancelled handler finds in its CancelledError."""
        match self.why:
            case Why.LOST:
                return LeaseLost(self.text)
            case Why.TIMEOUT:
                return Overdue(self.text)
            case Why.STOPPING:
                return Stopped(self.text)


class Work:
    __slots__ = ("claimed_at", "interrupted", "interruption", "is_warned", "lease_until", "message")

    def __init__(self, message: WorkMessage, claimed_at: int, lease_ms: int) -> None:
        self.message = message
        self.claimed_at = claimed_at
        # By our clock, and only for when the server cannot be asked: the server's word is what counts.
        self.lease_until = claimed_at + lease_ms
        self.interruption: Interruption | None = None
        self.interrupted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_warned = False

    def interrupt(self, why: Why, text: str) -> None:
        """The first reason stands, but for a lost lease: then nothing may be said of the message any more."""
        if self.interruption is not None and why is not Why.LOST:
            return
        self.interruption = Interruption(why, text)
        # From now on, what a thread that cannot be stopped does to the message is refused on the spot.
        self.message._held.lost = text
        if not self.interrupted.done():
            self.interrupted.set_result(None)

    def forgive(self) -> None:
        """It ended before it could be told to stop; only a lost lease cannot be undone."""
        if not self.is_lost:
            self.interruption = None

    def why_interrupted(self) -> Exception:
        assert self.interruption is not None
        return self.interruption.reason()

    @property
    def is_lost(self) -> bool:
        return self.interruption is not None and self.interruption.why is Why.LOST

    def facts(self) -> dict[str, object]:
        """For log lines about it."""
        message = self.message
        return {
            "tenant_id": message.tenant,
            "queue_id": message.queue,
            "message_id": str(message.id),
            "attempt": message.attempt,
            "correlation_id": message.correlation_id,
        }
