import ipaddress
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.doors.identity import Identity, PeerCertificate, make_identity
from holdfast.doors.identity.certificates import MAX_NAMES, Name, NameKind
from holdfast.model.errors import InvalidArgument, Unauthenticated
from holdfast.model.scopes import ALL_SCOPES, Scope
from holdfast.service.access import Caller
from holdfast.testing.clock import ManualClock
from tests.doors.credentials import CANARY, Authority, bearer, token

AUTHORITY = Authority()
SPIFFE = "spiffe://acme.example/ns/prod?x=1"
TENANTS = {
    "queue.acme.com": "acme",
    "backup.acme.com": "acme:admin",
    "queue.bolt.com": "bolt:read",
    SPIFFE: "acme:write",
    "ops@example.com": "*:read+write+admin",
    "10.1.2.3": "ten",
    "2001:db8::1": "six",
}


def peer(*names: x509.GeneralName, common_name: str = "someone") -> PeerCertificate:
    certificate, _ = AUTHORITY.issue(*names, common_name=common_name)
    return PeerCertificate.from_der(certificate.public_bytes(Encoding.DER))


def dns(text: str) -> x509.DNSName:
    return x509.DNSName(text)


def address(text: str) -> x509.IPAddress:
    return x509.IPAddress(ipaddress.ip_address(text))


@pytest.fixture
def identity() -> Identity:
    return make_identity(clock=ManualClock(), mtls_tenants=TENANTS)


READ_WRITE = frozenset({Scope.READ, Scope.WRITE})


@pytest.mark.spec("8.6")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([dns("queue.acme.com")], Caller(tenant="acme", scopes=READ_WRITE, subject="queue.acme.com")),
        ([dns("x.example"), dns("queue.acme.com")], Caller(tenant="acme", scopes=READ_WRITE, subject="queue.acme.com")),
        ([dns("queue.bolt.com")], Caller(tenant="bolt", scopes=frozenset({Scope.READ}), subject="queue.bolt.com")),
        (
            [x509.UniformResourceIdentifier(SPIFFE)],
            Caller(tenant="acme", scopes=frozenset({Scope.WRITE}), subject=SPIFFE),
        ),
        ([x509.RFC822Name("ops@example.com")], Caller(tenant="*", scopes=ALL_SCOPES, subject="ops@example.com")),
        ([address("10.1.2.3")], Caller(tenant="ten", scopes=READ_WRITE, subject="10.1.2.3")),
        ([address("2001:db8:0::1")], Caller(tenant="six", scopes=READ_WRITE, subject="2001:db8::1")),
        (
            [dns("queue.acme.com"), dns("backup.acme.com")],
            Caller(tenant="acme", scopes=ALL_SCOPES, subject="queue.acme.com"),
        ),
    ],
)
async def test_a_name_of_the_certificate_says_tenant_and_scopes(
    identity: Identity, names: list[x509.GeneralName], expected: Caller
) -> None:
    assert await identity.caller_of({}, peer(*names)) == expected


NOBODY: dict[str, PeerCertificate] = {
    "a longer name": peer(dns("queue.acme.com.evil.com")),
    "a name below": peer(dns("x.queue.acme.com")),
    "a name above": peer(dns("acme.com")),
    "a wildcard": peer(dns("*.acme.com")),
    "another case": peer(dns("QUEUE.acme.com")),
    "a trailing dot": peer(dns("queue.acme.com.")),
    "a leading space": peer(dns(" queue.acme.com")),
    "a NUL at the end": peer(dns("queue.acme.com\0")),
    "a NUL inside": peer(dns("queue.acme.com\0.evil.com")),
    "a look-alike": peer(dns("xn--queue-acme-9fh.com")),
    "the common name alone": peer(common_name="queue.acme.com"),
    "the common name beside another": peer(dns("x.example"), common_name="queue.acme.com"),
    "a host as a URI": peer(x509.UniformResourceIdentifier("queue.acme.com")),
    "a host as an e-mail": peer(x509.RFC822Name("queue.acme.com")),
    "a URI as a host": peer(dns(SPIFFE)),
    "a URI with more": peer(x509.UniformResourceIdentifier(SPIFFE + "2")),
    "an address as a host": peer(dns("10.1.2.3")),
    "a network": peer(x509.IPAddress(ipaddress.ip_network("10.1.2.3/32"))),
    "no names": peer(),
    "too many names": peer(*[dns(f"h{number}.example") for number in range(MAX_NAMES)], dns("queue.acme.com")),
    "two tenants": peer(dns("queue.acme.com"), dns("queue.bolt.com")),
    "a tenant and an operator": peer(dns("queue.acme.com"), x509.RFC822Name("ops@example.com")),
    "another name of another form": peer(
        x509.OtherName(x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3"), b"\x0c\x0equeue.acme.com")
    ),
    "no certificate at all": PeerCertificate.from_der(b"rubbish"),
    "an empty one": PeerCertificate.from_der(b""),
}


@pytest.mark.spec("8.6")
@pytest.mark.parametrize("name", NOBODY)
async def test_what_only_resembles_a_name_is_nobody(identity: Identity, name: str) -> None:
    with pytest.raises(Unauthenticated) as raised:
        await identity.caller_of({}, NOBODY[name])
    assert raised.value.facts == {"reason": "certificate"}
    assert "acme" not in str(raised.value)


async def test_a_name_that_is_no_ascii_is_nobody(identity: Identity) -> None:
    with pytest.raises(Unauthenticated):
        await identity.caller_of({}, PeerCertificate((Name(NameKind.DNS, "queue.\u0430cme.com"),)))


async def test_without_a_certificate_nobody_is_let_in(identity: Identity) -> None:
    for headers in ({}, {b"authorization": b"Bearer x"}, {b"x-client-cert": b"queue.acme.com"}):
        with pytest.raises(Unauthenticated) as raised:
            await identity.caller_of(headers, None)
        assert raised.value.facts == {"reason": "missing"}


async def test_pairs_and_a_table_say_the_same() -> None:
    pairs = ", ".join(f"{san}={tenant}" for san, tenant in TENANTS.items()) + ","
    identity = make_identity(clock=ManualClock(), mtls_tenants=pairs)
    caller = await identity.caller_of({}, peer(x509.UniformResourceIdentifier(SPIFFE)))
    assert caller == Caller(tenant="acme", scopes=frozenset({Scope.WRITE}), subject=SPIFFE)


WRONG: dict[str, Any] = {
    "nothing": "",
    "an empty table": {},
    "no tenant": "queue.acme.com",
    "an empty tenant": "queue.acme.com=",
    "an empty name": "=acme",
    "a wildcard": "*.acme.com=acme",
    "a tenant that is no name": "queue.acme.com=../acme",
    "an unknown scope": "queue.acme.com=acme:reed",
    "an empty scope": "queue.acme.com=acme:",
    "a name twice": "queue.acme.com=acme,queue.acme.com=bolt",
    "an address twice": {"2001:db8::1": "acme", "2001:db8:0::1": "bolt"},
    "a name that is no ASCII": {"queue.\u0430cme.com": "acme"},
    "a name with a space": {"queue acme": "acme"},
    "a name with a NUL": {"queue.acme.com\0": "acme"},
    "a long name": {"x" * 2_000: "acme"},
    "a number for a tenant": {"queue.acme.com": 1},
    "a number for a name": {1: "acme"},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_pairs_are_refused_by_the_name_of_the_setting(name: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        make_identity(clock=ManualClock(), mtls_tenants=WRONG[name])
    assert raised.value.facts == {"setting": "mtls_tenants"}
    assert "mtls_tenants" in str(raised.value)


# ---- tokens and certificates side by side


@pytest.fixture
def both() -> Identity:
    return make_identity(clock=ManualClock(), jwt_secret=CANARY, mtls_tenants=TENANTS)


async def test_a_token_wins_over_a_certificate(both: Identity) -> None:
    given = bearer(token(CANARY.encode(), "HS256", tenant="zeta"))
    assert (await both.caller_of(given, peer(dns("queue.acme.com")))).tenant == "zeta"
    assert (await both.caller_of({}, peer(dns("queue.acme.com")))).tenant == "acme"


@pytest.mark.parametrize("given", [b"Bearer rubbish", b"Basic abc", b""])
async def test_a_certificate_never_makes_up_for_a_bad_token(both: Identity, given: bytes) -> None:
    with pytest.raises(Unauthenticated):
        await both.caller_of({b"authorization": given}, peer(dns("queue.acme.com")))


async def test_with_neither_token_nor_certificate_nobody_is_let_in(both: Identity) -> None:
    await both.start()
    with pytest.raises(Unauthenticated) as raised:
        await both.caller_of({}, None)
    assert raised.value.facts == {"reason": "missing"}
    await both.close()
