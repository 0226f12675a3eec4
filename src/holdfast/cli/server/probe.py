"""The readiness, version and clock of a server, read over plain HTTP."""

import http.client
import ssl
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from holdfast.clock import SystemClock, steady_s
from holdfast.model.errors import HoldfastError

_TIMEOUT_S = 5.0


class Probe(NamedTuple):
    """The state of a server. With `error`, nothing else is known."""

    error: str | None = None
    is_ready: bool = False
    readiness: str = ""
    took_ms: float = 0.0
    # This machine's clock minus the server's.
    skew_s: float | None = None
    version: str | None = None


class _Response(NamedTuple):
    status: int
    date: str | None
    body: bytes
    took_ms: float


def probe(url: str) -> Probe:
    """Ask a server for its readiness, version and time. Never raises for a server that cannot be reached."""
    try:
        ready = _get(url, "/readyz")
        now_ms = SystemClock().now_ms()
        described = _get(url, "/openapi.json")
    except (OSError, http.client.HTTPException, HoldfastError, ValueError) as error:
        return Probe(
            error=f"{url} does not respond: {getattr(error, 'strerror', None) or str(error) or type(error).__name__}"
        )
    document = _document(ready.body)
    if "status" not in document:
        return Probe(error=f"the server at {url} is not Holdfast (status {ready.status})")
    problems = document.get("problems")
    wrong = [document.get("reason"), *(problems if isinstance(problems, list) else [])]
    reason = f": {shown}" if (shown := "; ".join(str(each) for each in wrong if each)) else ""
    info = _document(described.body).get("info")
    return Probe(
        is_ready=ready.status == 200,
        readiness=f"{'ready' if ready.status == 200 else 'not ready'}{reason}",
        took_ms=ready.took_ms,
        skew_s=_skew_s(ready.date, now_ms),
        version=str(info["version"]) if isinstance(info, dict) and "version" in info else None,
    )


def _get(url: str, path: str) -> _Response:
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme.lower() == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        began = steady_s()
        connection.request("GET", parts.path.rstrip("/") + path)
        response = connection.getresponse()
        took_ms = (steady_s() - began) * 1_000
        return _Response(response.status, response.getheader("date"), response.read(8 << 20), took_ms)
    finally:
        connection.close()


def _skew_s(date: str | None, now_ms: int) -> float | None:
    if date is None:
        return None
    try:
        server_s = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    # The date is truncated to whole seconds: the true time is half a second later on average.
    return now_ms / 1_000 - server_s - 0.5


def _document(body: bytes) -> dict[str, object]:
    try:
        found = msgspec.json.decode(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
