"""The choice of a protocol for a server with an HTTP URL: the framed protocol where it gets through, else HTTP."""

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
# How long the server may take to describe its protocols, and each of its endpoints to accept a connection.
_ASK_MS = 5_000
_REACH_S = 2.0


class Protocol(StrEnum):
    """The protocol that a worker is asked to use."""

    AUTO = "auto"
    HTTP = "http"
    FRAMED = "framed"


class _Offer(msgspec.Struct):
    """The fields of the health check that describe the framed protocol."""

    framed_port: int | None = None
    framed_upgrade: bool = False


class _Endpoint(msgspec.Struct):
    """An address at which the server offers the framed protocol."""

    url: str
    settings: RemoteSettings
    is_upgrade: bool


_offer = msgspec.json.Decoder(_Offer)


def parse_protocol(given: object) -> Protocol:
    """Return the protocol. Raise `InvalidArgument` for an unknown one."""
    try:
        return Protocol(given)  # type: ignore[arg-type]  # any other value raises ValueError
    except ValueError:
        raise InvalidArgument("protocol must be 'auto', 'http' or 'framed'", field="protocol") from None


def open_chosen_on_loop(url: str, settings: Mapping[str, Any], protocol: Protocol) -> AsyncHoldfast:
    """Return a client for the running loop; entering it chooses the protocol and connects.

    Entering raises `StoreUnavailable` if the server cannot be reached, or if `FRAMED` was given and frames do not get
    through. With `AUTO`, HTTP is used in that case.
    """
    parsed = parse_settings(url, settings)

    async def connect() -> Transport:
        if protocol is Protocol.HTTP:
            return HttpTransport(parsed)
        reasons: list[str] = []
        for endpoint in await _find_endpoints(parsed, reasons):
            try:
                transport = await FramedTransport.reach(
                    endpoint.url, endpoint.settings, _REACH_S, is_upgrade=endpoint.is_upgrade
                )
            except Lost as lost:
                reasons.append(f"{endpoint.url} does not accept the framed protocol: {lost.reason}")
            else:
                _log.info("protocol_chosen protocol=framed url=%s", endpoint.url)
                return transport
        reason = "; ".join(reasons)
        if protocol is Protocol.FRAMED:
            raise StoreUnavailable(f"{parsed.address.url} cannot be used over the framed protocol: {reason}", url=url)
        _log.info("protocol_chosen protocol=http url=%s reason=%s", parsed.address.url, reason)
        return HttpTransport(parsed)

    return AsyncHoldfast(connect, parsed.address.url)


async def _find_endpoints(settings: RemoteSettings, reasons: list[str]) -> list[_Endpoint]:
    """Return the endpoints of the framed protocol, best first. Raise `StoreUnavailable` without a server."""
    address = settings.address
    calls = HttpCalls(replace(settings, retries=0, timeout_ms=min(settings.timeout_ms, _ASK_MS)))
    try:
        offer = _offer.decode((await calls.send(HttpRequest("GET", _HEALTH, []))).body)
    except HoldfastError as error:
        if isinstance(error, StoreUnavailable) and error.facts.get("outcome") == "nothing happened":
            raise
        reasons.append(error.message)
        return []
    except msgspec.DecodeError:
        offer = _Offer()
    finally:
        await calls.close()
    endpoints = []
    if offer.framed_port is not None:
        own = replace(address, port=offer.framed_port, prefix="")
        own = replace(own, url=f"{'holdfasts' if own.is_tls else 'holdfast'}://{own.authority}")
        endpoints.append(_Endpoint(own.url, replace(settings, address=own), is_upgrade=False))
    if offer.framed_upgrade:
        endpoints.append(_Endpoint(address.url, settings, is_upgrade=True))
    if not endpoints:
        reasons.append("the server does not offer the framed protocol")
    return endpoints
