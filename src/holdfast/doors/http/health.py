"""The routes for liveness, readiness and metrics."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec import UNSET

from holdfast.doors.http.calls import JSON_TYPE, HttpCall
from holdfast.doors.identity import Identity
from holdfast.model.errors import HoldfastError
from holdfast.service.drain import Drain
from holdfast.wire.http.admin_bodies import HealthAnswer
from holdfast.wire.http.bodies import encode

# A response: status, body and headers.
Answer = tuple[int, bytes, list[tuple[bytes, bytes]]]
_NO_STORE = (b"cache-control", b"no-store")
# The Prometheus text format.
_METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class FramedOffer(NamedTuple):
    """The addresses of the framed protocol: its own port, if it has one, and an upgrade of the HTTP port."""

    port: int | None
    is_upgradable: bool = True


class Health:
    """The handlers of `/healthz`, `/readyz` and `/metrics`.

    `check_store` raises while the store is unavailable, and otherwise returns what is wrong all the same. `render`
    returns the metrics in the Prometheus text format. `scrapers` identifies callers of the metrics; None uses the
    server's own identity. `framed` tells callers of `/healthz` where they can use the framed protocol instead of HTTP.
    """

    def __init__(
        self,
        *,
        drain: Drain,
        check_store: Callable[[], Awaitable[Sequence[str]]],
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
        """Return 200: a server that responds is alive."""
        return _health(200, self._alive)

    async def readyz(self) -> Answer:
        """Return 200 if the server accepts calls, with what is wrong all the same; otherwise 503 with the reason."""
        if self._drain.is_draining:
            return _health(503, HealthAnswer(status="unavailable", reason="this server is shutting down"))
        try:
            problems = await self._check_store()
        except HoldfastError as error:
            return _health(503, HealthAnswer(status="unavailable", reason=error.message))
        return _health(200, HealthAnswer(status="ok", problems=list(problems) or UNSET))

    async def metrics(self, call: HttpCall) -> None:
        """Return the metrics to an operator or a scraper."""
        call.query()
        call.session.check_metrics()
        await call.answer(await self._render(), headers=[_METRICS_TYPE, _NO_STORE])

    @property
    def scrapers(self) -> Identity | None:
        """Return the identity for callers of the metrics, or None to use the server's own."""
        return self._scrapers


def _health(status: int, answer: HealthAnswer) -> Answer:
    headers = [JSON_TYPE, _NO_STORE]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    return status, encode(answer), headers
