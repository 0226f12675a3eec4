"""Identify callers by client certificate (mTLS): one of its names must equal a configured name exactly."""

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.doors.identity.claims import refused
from holdfast.model.errors import InvalidArgument, InvalidName
from holdfast.model.names import parse_name
from holdfast.model.scopes import Scope
from holdfast.service.access import EVERY_TENANT, Caller

if TYPE_CHECKING:
    from cryptography import x509

# More than any certificate needs. Bounded, because each name is looked up.
MAX_NAMES = 256
MAX_NAME_CHARS = 1_024
_DEFAULT_SCOPES = frozenset({Scope.READ, Scope.WRITE})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class NameKind(StrEnum):
    """The kind of a subject alternative name."""

    DNS = "dns"
    URI = "uri"
    EMAIL = "email"
    ADDRESS = "address"


class Name(NamedTuple):
    """A subject alternative name. Names of different kinds never match, even if their text is the same."""

    kind: NameKind
    text: str


class PeerCertificate(msgspec.Struct, frozen=True):
    """The subject alternative names of a verified client certificate. The common name is ignored on purpose."""

    names: tuple[Name, ...]

    @classmethod
    def from_der(cls, der: bytes) -> "PeerCertificate":
        """Return the names of an encoded certificate, or none if it cannot be parsed."""
        from cryptography import x509

        try:
            extensions = x509.load_der_x509_certificate(der).extensions
            alternatives = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            return cls(tuple(_names(alternatives)))
        except (ValueError, TypeError, x509.ExtensionNotFound, x509.DuplicateExtension):
            return cls(())


def _names(alternatives: Iterable["x509.GeneralName"]) -> list[Name]:
    from cryptography import x509

    names: list[Name] = []
    for alternative in alternatives:
        match alternative:
            case x509.DNSName():
                names.append(Name(NameKind.DNS, alternative.value))
            case x509.UniformResourceIdentifier():
                names.append(Name(NameKind.URI, alternative.value))
            case x509.RFC822Name():
                names.append(Name(NameKind.EMAIL, alternative.value))
            case x509.IPAddress():
                names.append(Name(NameKind.ADDRESS, str(alternative.value)))
    return names if len(names) <= MAX_NAMES else []


class CertificateIdentity:
    """An identity that maps the names in client certificates to tenants and scopes."""

    def __init__(self, tenants: str | Mapping[str, str]) -> None:
        self._callers = parse_tenants(tenants)
        # Imported now, so that the first caller does not wait for it.
        import cryptography.x509  # noqa: F401

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller:
        """Return the caller of a certificate. Raise `Unauthenticated` unless its names belong to exactly one tenant."""
        if peer is None:
            raise refused("missing", "authentication is required; connect with a client certificate")
        found = [caller for name in peer.names if (caller := self._callers.get(name)) is not None]
        if not found:
            raise refused("certificate", "no subject alternative name of the certificate is in mtls_tenants")
        if len(found) == 1:
            return found[0]
        if len({caller.tenant for caller in found}) > 1:
            raise refused("certificate", "the certificate has names of several tenants; use one certificate for each")
        scopes = frozenset[Scope]().union(*(caller.scopes for caller in found))
        return Caller(tenant=found[0].tenant, scopes=scopes, subject=found[0].subject)


def parse_tenants(given: str | Mapping[str, str]) -> dict[Name, Caller]:
    """Return the callers of a value of `mtls_tenants`: a table, or `san=tenant` pairs separated by commas.

    A tenant may be followed by its scopes, as in `acme:read+write+admin`. Raise `InvalidArgument` for another form.
    """
    callers: dict[Name, Caller] = {}
    for san, tenant in _pairs(given):
        name = _configured_name(san)
        if name in callers:
            raise _wrong(f"{san} is given twice")
        callers[name] = _configured_caller(san, tenant)
    if not callers:
        raise _wrong("the setting is empty; give san=tenant pairs or omit it")
    return callers


def _pairs(given: str | Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if not isinstance(given, str):
        return given.items()
    pairs = []
    for pair in filter(None, map(str.strip, given.split(","))):
        # Split at the last `=`, because a URI may contain one and a tenant may not.
        san, equals, tenant = pair.rpartition("=")
        if not equals:
            raise _wrong(f"{pair!r:.200} is not of the form san=tenant")
        pairs.append((san.strip(), tenant.strip()))
    return pairs


def _configured_name(san: object) -> Name:
    if not isinstance(san, str) or not san or len(san) > MAX_NAME_CHARS:
        raise _wrong(f"a name must be text of 1-{MAX_NAME_CHARS} characters")
    if "*" in san:
        raise _wrong(f"{san!r} has a wildcard; names are compared exactly")
    if not san.isascii() or not san.isprintable() or " " in san:
        raise _wrong(f"{san!r} has characters that no certificate contains; write a domain as xn--…")
    try:
        return Name(NameKind.ADDRESS, str(ipaddress.ip_address(san)))
    except ValueError:
        pass
    if _SCHEME.match(san):
        return Name(NameKind.URI, san)
    return Name(NameKind.EMAIL if "@" in san else NameKind.DNS, san)


def _configured_caller(san: str, given: object) -> Caller:
    if not isinstance(given, str):
        raise _wrong(f"{san}: the tenant must be text")
    tenant, colon, words = given.partition(":")
    scopes = _DEFAULT_SCOPES
    if colon:
        try:
            scopes = frozenset(Scope(word.strip()) for word in words.split("+"))
        except ValueError:
            raise _wrong(f"{san}: a scope is not read, write or admin; separate scopes by +") from None
    tenant = tenant.strip()
    if tenant != EVERY_TENANT:
        try:
            parse_name("tenant", tenant)
        except InvalidName as error:
            raise _wrong(f"{san}: {error.message}") from None
    return Caller(tenant=tenant, scopes=scopes, subject=san)


def _wrong(why: str) -> InvalidArgument:
    return InvalidArgument(f"mtls_tenants: {why}", setting="mtls_tenants")


def peer_of(transport: asyncio.BaseTransport) -> PeerCertificate | None:
    """Return the client certificate that the TLS handshake has verified, or None."""
    tls = transport.get_extra_info("ssl_object")
    # A certificate that TLS was not asked to verify proves nothing.
    if tls is None or tls.context.verify_mode == ssl.CERT_NONE:
        return None
    der = tls.getpeercert(binary_form=True)
    return None if der is None else PeerCertificate.from_der(der)
