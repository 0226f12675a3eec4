"""The protocol that a program uses with a server of which it has the HTTP URL: frames where they get through."""

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.client.client import AsyncHoldfast
from holdfast.client.framed.transport import FramedTransport
from holdfast.client.http.calls import HttpCalls, HttpRequest
from holdfast.client.http.transport import HttpTransport
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import RemoteSettings, parse_settings
from holdfast.client.transport import Transport
from holdfast.model.errors import HoldfastError, InvalidArgument, StoreUnavailable

_log = logging.getLogger("holdfast")

_HEALTH = "/healthz"
# For the server to say what it offers, and for each way that it offers to prove open.
_ASK_MS = 5_000
_REACH_S = 2.0


class Protocol(StrEnum):
    AUTO = "auto"
    HTTP = "http"
    FRAMED = "framed"


class _Offer(msgspec.Struct):
    framed_port: int | None = None
    framed_upgrade: bool = False


class _Way(msgspec.Struct):
    url: str
    settings: RemoteSettings
    is_upgrade: bool


_offer = msgspec.json.Decoder(_Offer)


def parse_protocol(given: object) -> Protocol:
    try:
        return Protocol(given)  # type: ignore[arg-type]  # anything else raises
    except ValueError:
        raise InvalidArgument("protocol is 'auto', 'http' or 'framed'", field="protocol") from None


def open_chosen_on_loop(url: str, settings: Mapping[str, Any], protocol: Protocol) -> AsyncHoldfast:
    """Open the server at an HTTP URL for the running loop, over the protocol that is found when it is entered.

    Entering raises `StoreUnavailable` if the server cannot be reached, or if frames were asked for and do not get
    through. With `AUTO` HTTP is used then.
    """
    parsed = parse_settings(url, settings)

    async def connect() -> Transport:
        if protocol is Protocol.HTTP:
            return HttpTransport(parsed)
        reasons: list[str] = []
        for way in await _offered(parsed, reasons):
            try:
                transport = await FramedTransport.reach(way.url, way.settings, _REACH_S, is_upgrade=way.is_upgrade)
            except Lost as lost:
                reasons.append(f"{way.url} cannot be reached by frames: {lost.reason}")
            else:
                _log.info("using the framed protocol with %s", way.url)
                return transport
        reason = "; ".join(reasons)
        if protocol is Protocol.FRAMED:
            raise StoreUnavailable(f"{parsed.address.url} cannot be used over the framed protocol: {reason}", url=url)
        _log.info("using HTTP with %s: %s", parsed.address.url, reason)
        return HttpTransport(parsed)

    return AsyncHoldfast(connect)


async def _offered(settings: RemoteSettings, reasons: list[str]) -> list[_Way]:
    """Return the ways that the server offers, the best first. Raise `StoreUnavailable` if it cannot be reached."""
    address = settings.address
    calls = HttpCalls(replace(settings, retries=0, timeout_ms=min(settings.timeout_ms, _ASK_MS)))
    try:
        offer = _offer.decode((await calls.ask(HttpRequest("GET", _HEALTH, []))).body)
    except HoldfastError as error:
        if isinstance(error, StoreUnavailable) and error.facts.get("outcome") == "nothing happened":
            raise
        reasons.append(error.message)
        return []
    except msgspec.DecodeError:
        offer = _Offer()
    finally:
        await calls.close()
    ways = []
    if offer.framed_port is not None:
        own = replace(address, port=offer.framed_port, prefix="")
        own = replace(own, url=f"{'holdfasts' if own.is_tls else 'holdfast'}://{own.authority}")
        ways.append(_Way(own.url, replace(settings, address=own), is_upgrade=False))
    if offer.framed_upgrade:
        ways.append(_Way(address.url, settings, is_upgrade=True))
    if not ways:
        reasons.append("the server offers no framed protocol")
    return ways
