"""Identify scrapers of the metrics, which may have a token of their own that grants nothing else."""

import hmac
import logging
from collections.abc import Mapping
from typing import Protocol

from holdfast.doors.identity.certificates import PeerCertificate
from holdfast.doors.identity.claims import AUTHORIZATION, BEARER, refused
from holdfast.model.errors import Unauthenticated
from holdfast.model.scopes import Scope
from holdfast.service.access import EVERY_TENANT, Caller

_log = logging.getLogger("holdfast")

# An operator, because the metrics show every tenant. Only the metrics route runs calls as this caller.
_SCRAPER = Caller(tenant=EVERY_TENANT, scopes=frozenset({Scope.READ}), subject="scraper")
_HINT = "scrape with metrics_token or an operator's token, or set metrics_public on the server"


class _Callers(Protocol):
    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller: ...


class ScraperIdentity:
    """An identity for callers of `/metrics`: by `metrics_token`, otherwise like the rest of the server.

    With `metrics_public` anyone may scrape. The first of several refused scrapes is logged, because Prometheus itself
    records only that a scrape failed.
    """

    def __init__(self, callers: _Callers, *, token: str | None, is_public: bool) -> None:
        self._callers = callers
        self._token = None if token is None else token.encode()
        self._is_public = is_public
        self._was_refused = False

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller:
        """Return the caller. Raise `Unauthenticated` if its credential is missing or invalid."""
        if self._is_public or self._has_token(headers):
            caller = _SCRAPER
        else:
            try:
                caller = await self._callers.caller_of(headers, peer)
            except Unauthenticated as error:
                reason = str(error.facts.get("reason", error.code))
                self._note_refusal(reason)
                raise refused(reason, f"{error.message}; {_HINT}") from None
        if caller.is_operator and caller.has(Scope.READ):
            self._was_refused = False
        else:
            self._note_refusal("forbidden")  # the session, which checks every caller, will refuse this one
        return caller

    def _has_token(self, headers: Mapping[bytes, bytes]) -> bool:
        given = headers.get(AUTHORIZATION, b"")
        if self._token is None or given[: len(BEARER)].lower() != BEARER:
            return False
        return hmac.compare_digest(given[len(BEARER) :].strip(b" "), self._token)

    def _note_refusal(self, reason: str) -> None:
        if not self._was_refused:
            self._was_refused = True
            _log.warning("metrics_scrape_refused", extra={"reason": reason, "hint": _HINT})
