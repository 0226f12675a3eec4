"""Choose from a server's settings how it identifies callers."""

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
    """A way to identify callers."""

    async def start(self) -> None:
        """Load the keys. A key server that is down does not keep the server from starting."""

    async def close(self) -> None:
        """Stop loading keys."""

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller:
        """Return the caller of a request. Raise `Unauthenticated` if its credential is missing or invalid.

        The names of `headers` are in lower case. `peer` is the connection's client certificate, verified by TLS.
        """


class Open:
    """The identity of a server without a configured one: anyone may do anything.

    Such a server listens only on loopback addresses.
    """

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller:
        return ANYONE


class TokenOrCertificate:
    """An identity by token, or by certificate if no token is given. A certificate never replaces an invalid token."""

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
        raise refused("missing", "authentication is required; send a bearer token or connect with a client certificate")


def make_identity(
    *,
    clock: Clock,
    jwt_secret: str | None = None,
    jwt_keys: str | None = None,
    jwt_issuer: str | None = None,
    jwt_audience: str | None = None,
    mtls_tenants: str | Mapping[str, str] | None = None,
) -> Identity:
    """Return the identity of a server with these settings.

    None means that a setting is not given. Raise `InvalidArgument` for an invalid setting, also for an empty one, which
    would leave a server open that was meant to be closed.
    """
    tokens = make_token_identity(clock, jwt_secret, jwt_keys, jwt_issuer, jwt_audience)
    certificates = None if mtls_tenants is None else CertificateIdentity(mtls_tenants)
    if tokens is not None and certificates is not None:
        return TokenOrCertificate(tokens, certificates)
    return tokens or certificates or Open()


def make_token_identity(
    clock: Clock, secret: str | None, keys: str | None, issuer: str | None, audience: str | None
) -> "TokenIdentity | None":
    """Return the identity by token of a server with these settings, or None if it accepts no tokens.

    Raise `InvalidArgument` for an invalid setting.
    """
    for setting, value in (("jwt_issuer", issuer), ("jwt_audience", audience)):
        if value is not None and not value.strip():
            raise InvalidArgument(f"{setting} is empty; give a value or omit the setting", setting=setting)
    if secret is not None and keys is not None:
        raise InvalidArgument(
            "jwt_secret and jwt_keys are both set; give only one, because a public key must never be used as a secret",
            setting="jwt_keys",
        )
    if secret is None and keys is None:
        if issuer is not None:
            raise InvalidArgument("jwt_issuer has no effect without jwt_secret or jwt_keys", setting="jwt_issuer")
        return None
    from holdfast.doors.identity.keys import secret_keys
    from holdfast.doors.identity.sources import FixedKeys, make_key_source
    from holdfast.doors.identity.tokens import TokenIdentity

    source = FixedKeys(secret_keys(secret)) if secret is not None else make_key_source(keys or "", clock)
    return TokenIdentity(source, clock, audience=audience or DEFAULT_AUDIENCE, issuer=issuer)
