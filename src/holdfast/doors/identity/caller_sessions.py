"""The sessions of a door's callers."""

from collections.abc import Callable, Mapping

from holdfast.doors.identity.certificates import PeerCertificate
from holdfast.doors.identity.compose import Identity, Open
from holdfast.service.access import ANYONE, Caller
from holdfast.service.session import Session

_MAX_SESSIONS = 10_000


class CallerSessions:
    """One session for each caller, opened at its first call."""

    def __init__(self, identity: Identity, open_session: Callable[[Caller], Session]) -> None:
        self._identity = identity
        self._open_session = open_session
        # The session of all callers of a server without authentication.
        self.anyone: Session | None = open_session(ANYONE) if isinstance(identity, Open) else None
        self._sessions: dict[Caller, Session] = {}

    async def identify(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Session:
        """Return the session of a credential. Raise `Unauthenticated` if it is missing or invalid.

        Call this for each call, because a token may expire while its connection is open.
        """
        return self.of(await self._identity.caller_of(headers, peer))

    def of(self, caller: Caller) -> Session:
        """Return the session of a caller."""
        session = self._sessions.get(caller)
        if session is None:
            if len(self._sessions) >= _MAX_SESSIONS:
                self._sessions.clear()
            session = self._sessions[caller] = self._open_session(caller)
        return session
