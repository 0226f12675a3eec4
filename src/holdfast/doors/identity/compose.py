"""Which identities a server asks for, from its settings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import Clock
from holdfast.doors.identity.certificates import CertificateIdentity, PeerCertificate
from holdfast.doors.identity.claims import AUTHORIZATION, refused
from holdfast.model.errors import InvalidArgument
from holdfast.service.access import ANYONE, Caller

if TYPE_CHECKING:
    from holdfast.doors.identity.tokens import TokenIdentity

DEFAULT_AUDIENCE = "holdfast"


class Identity(Protocol):
    """Says who is calling, or raises `Unauthenticated`."""

    async def start(self) -> None:
        """Fetch what is needed to begin with. A key server that is down does not keep a server from starting."""

    async def close(self) -> None: ...

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller:
        """By the headers, with lower-case names, and by the connection's certificate, which TLS has verified."""


class Open:
    """No identity is configured: anyone may do anything. A server that has this listens on loopback alone."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller:
        return ANYONE


class TokenOrCertificate:
    """A token wins where one is given, good or bad: a certificate never makes up for a bad token."""

    def __init__(self, tokens: "TokenIdentity", certificates: CertificateIdentity) -> None:
        self._tokens = tokens
        self._certificates = certificates

    async def start(self) -> None:
        await self._tokens.start()

    async def close(self) -> None:
        await self._tokens.close()

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller:
        if AUTHORIZATION in headers:
            return await self._tokens.caller_of(headers, peer)
        if peer is not None:
            return await self._certificates.caller_of(headers, peer)
        raise refused("missing", "say who you are: send a bearer token, or connect with a client certificate")


def make_identity(
    *,
    clock: Clock,
    jwt_secret: str | None = None,
    jwt_keys: str | None = None,
    jwt_issuer: str | None = None,
    jwt_audience: str | None = None,
    mtls_tenants: str | Mapping[str, str] | None = None,
) -> Identity:
    """None is a setting left out; an empty one is refused, for it would leave a server open that was to be closed."""
    tokens = make_token_identity(clock, jwt_secret, jwt_keys, jwt_issuer, jwt_audience)
    certificates = None if mtls_tenants is None else CertificateIdentity(mtls_tenants)
    if tokens is not None and certificates is not None:
        return TokenOrCertificate(tokens, certificates)
    return tokens or certificates or Open()


def make_token_identity(
    clock: Clock, secret: str | None, keys: str | None, issuer: str | None, audience: str | None
) -> "TokenIdentity | None":
    """Return what verifies the tokens of a server with these settings; None if it takes no tokens."""
    for setting, value in (("jwt_issuer", issuer), ("jwt_audience", audience)):
        if value is not None and not value.strip():
            raise InvalidArgument(f"{setting} is empty: give a text, or leave it out", setting=setting)
    if secret is not None and keys is not None:
        raise InvalidArgument(
            "jwt_secret and jwt_keys: give one of them; a public key must never pass for a secret", setting="jwt_keys"
        )
    if secret is None and keys is None:
        if issuer is not None:
            raise InvalidArgument("jwt_issuer is of no use without jwt_secret or jwt_keys", setting="jwt_issuer")
        return None
    from holdfast.doors.identity.keys import secret_keys
    from holdfast.doors.identity.sources import FixedKeys, key_source
    from holdfast.doors.identity.tokens import TokenIdentity

    source = FixedKeys(secret_keys(secret)) if secret is not None else key_source(keys or "", clock)
    return TokenIdentity(source, clock, audience=audience or DEFAULT_AUDIENCE, issuer=issuer)
