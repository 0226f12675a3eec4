"""The endpoints of the framed protocol that a server offers in its health check."""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.client.http.calls import HttpCalls, HttpRequest
from holdfast.client.remote.settings import RemoteSettings
from holdfast.model.errors import InvalidArgument, StoreUnavailable

_HEALTH = "/healthz"
# How long the server may take to describe its protocols.
_ASK_MS = 5_000


class Protocol(StrEnum):
    """The protocol that a worker is asked to use."""

    AUTO = "auto"
    HTTP = "http"
    FRAMED = "framed"


class _Offer(msgspec.Struct):
    """The fields of the health check that describe the framed protocol."""

    framed_port: int | None = None
    framed_upgrade: bool = False


class Endpoint(msgspec.Struct):
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


async def find_endpoints(settings: RemoteSettings) -> list[Endpoint]:
    """Return the endpoints of the framed protocol, best first.

    Raise `StoreUnavailable` if the server cannot be reached or does not respond in time, and another `HoldfastError` if
    it refuses to describe itself.
    """
    calls = HttpCalls(replace(settings, retries=0, timeout_ms=min(settings.timeout_ms, _ASK_MS)))
    try:
        offer = _offer.decode((await calls.send(HttpRequest("GET", _HEALTH, []))).body)
    except msgspec.DecodeError:
        offer = _Offer()
    finally:
        await calls.close()
    endpoints, address = [], settings.address
    if offer.framed_port is not None:
        own = replace(address, port=offer.framed_port, prefix="")
        own = replace(own, url=f"{'holdfasts' if own.is_tls else 'holdfast'}://{own.authority}")
        endpoints.append(Endpoint(own.url, replace(settings, address=own), is_upgrade=False))
    if offer.framed_upgrade:
        endpoints.append(Endpoint(address.url, settings, is_upgrade=True))
    return endpoints


def is_unreached(error: StoreUnavailable) -> bool:
    """Return whether the error says that the server was not reached at all."""
    return error.facts.get("outcome") == "nothing happened"
