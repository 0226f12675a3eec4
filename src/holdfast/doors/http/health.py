"""Whether the server lives, whether it is ready, and its figures."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from msgspec import UNSET

from holdfast.doors.http.calls import JSON_TYPE, HttpCall
from holdfast.doors.identity import Identity
from holdfast.model.errors import HoldfastError
from holdfast.service.drain import Drain
from holdfast.wire.http.admin_bodies import HealthAnswer
from holdfast.wire.http.bodies import encode

# What an open path answers: status, body, headers.
Answer = tuple[int, bytes, list[tuple[bytes, bytes]]]
_NOT_KEPT = (b"cache-control", b"no-store")
# Prometheus' text format.
_METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class FramedOffer(NamedTuple):
    """Where callers reach the framed protocol: its own port, if it has one, and this one."""

    port: int | None
    is_upgradable: bool = True


class Health:
    """The routes that say how a server does.

    `check_store` raises while the store cannot be used; `render` returns the metrics as Prometheus reads them;
    `scrapers` identifies callers of the metrics; `framed` is what callers may use instead of HTTP.
    """

    def __init__(
        self,
        *,
        drain: Drain,
        check_store: Callable[[], Awaitable[None]],
        render: Callable[[], Awaitable[bytes]],
        scrapers: Identity | None = None,
        framed: FramedOffer | None = None,
    ) -> None:
        self._drain = drain
        self._check_store = check_store
        self._render = render
        self._scrapers = scrapers
        self._alive = HealthAnswer(status="ok")
        if framed is not None:
            port = UNSET if framed.port is None else framed.port
            self._alive = HealthAnswer(status="ok", framed_port=port, framed_upgrade=framed.is_upgradable)

    async def healthz(self) -> Answer:
        """Alive: whoever answers is."""
        return _health(200, self._alive)

    async def readyz(self) -> Answer:
        if self._drain.is_draining:
            return _health(503, HealthAnswer(status="unavailable", reason="this server is closing"))
        try:
            await self._check_store()
        except HoldfastError as error:
            return _health(503, HealthAnswer(status="unavailable", reason=error.message))
        return _health(200, HealthAnswer(status="ok"))

    async def metrics(self, call: HttpCall) -> None:
        call.query()
        call.session.check_metrics()
        await call.answer(await self._render(), headers=[_METRICS_TYPE, _NOT_KEPT])

    @property
    def scrapers(self) -> Identity | None:
        """The callers that may read the figures without a credential of the server's own."""
        return self._scrapers


def _health(status: int, answer: HealthAnswer) -> Answer:
    headers = [JSON_TYPE, _NOT_KEPT]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    return status, encode(answer), headers
