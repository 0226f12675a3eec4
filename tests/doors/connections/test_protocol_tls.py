"""Connections over TLS: a client certificate reaches the call, and a refusal reaches its caller."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from holdfast.doors.http.connections.request_heads import MAX_HEAD_BYTES
from holdfast.doors.identity import PeerCertificate
from tests.doors.connections.connections import HELLO, App, Run, assert_refused, head_of, serving, talk
from tests.doors.credentials import Authority, write_pair


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = write_pair(folder, "server", authority.issue_server())
    ca, _ = write_pair(folder, "ca", (authority.certificate, authority.key))
    return {"certificate": certificate, "key": key, "ca": ca}


def server_context(tls_files: dict[str, str], requirement: int = ssl.CERT_NONE) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls_files["certificate"], tls_files["key"])
    context.load_verify_locations(tls_files["ca"])
    context.verify_mode = ssl.VerifyMode(requirement)
    return context


def client_context(tls_files: dict[str, str], folder: Path, pair: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls_files["ca"])
    if pair is not None:
        context.load_cert_chain(*write_pair(folder, "client", pair))
    return context


CLOSING = HELLO.replace(b"Host", b"Connection: close\r\nHost")


def test_the_client_certificate_reaches_the_call(
    run: Run, authority: Authority, tls_files: dict[str, str], tmp_path: Path
) -> None:
    async def test() -> None:
        app = App()
        pair = authority.issue(x509.DNSName("queue.acme.com"), x509.UniformResourceIdentifier("spiffe://a/b"))
        context = client_context(tls_files, tmp_path, pair)
        async with serving(app, tls=server_context(tls_files, ssl.CERT_OPTIONAL)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
            for _ in range(2):
                writer.write(HELLO)
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            writer.close()
        peers = [call["extensions"]["holdfast"].peer for call in app.calls]
        assert isinstance(peers[0], PeerCertificate)
        assert [name.text for name in peers[0].names] == ["queue.acme.com", "spiffe://a/b"]
        assert peers[0] is peers[1]

    run(test())


@pytest.mark.parametrize("requirement", [ssl.CERT_OPTIONAL, ssl.CERT_NONE])
def test_without_a_certificate_there_is_no_peer(
    run: Run, tls_files: dict[str, str], tmp_path: Path, requirement: int
) -> None:
    async def test() -> None:
        app = App()
        async with serving(app, tls=server_context(tls_files, requirement)) as port:
            assert (await talk(port, CLOSING, tls=client_context(tls_files, tmp_path, None))).startswith(
                b"HTTP/1.1 200"
            )
        assert app.calls[0]["extensions"]["holdfast"].peer is None

    run(test())


def test_a_certificate_that_was_not_asked_for_is_no_peer(
    run: Run, authority: Authority, tls_files: dict[str, str], tmp_path: Path
) -> None:
    async def test() -> None:
        app = App()
        context = client_context(tls_files, tmp_path, authority.issue(x509.DNSName("queue.acme.com")))
        async with serving(app, tls=server_context(tls_files, ssl.CERT_NONE)) as port:
            assert (await talk(port, CLOSING, tls=context)).startswith(b"HTTP/1.1 200")
        assert app.calls[0]["extensions"]["holdfast"].peer is None

    run(test())


NAME = x509.DNSName("queue.acme.com")
UNTRUSTED: dict[str, Callable[[Authority], Any]] = {
    "of another authority": lambda authority: Authority().issue(NAME),
    "of an authority of the same name": lambda authority: Authority("test authority").issue(NAME),
    "expired": lambda authority: authority.issue(NAME, days=-1),
    "for servers alone": lambda authority: authority.issue(NAME, purposes=[x509.ExtendedKeyUsageOID.SERVER_AUTH]),
    "signed by a certificate that may not sign": lambda authority: _issued_by_a_leaf(authority),
}


def _issued_by_a_leaf(authority: Authority) -> Any:
    leaf, leaf_key = authority.issue(NAME, common_name="leaf")
    pretender = Authority()
    pretender.key, pretender.name = leaf_key, leaf.subject
    return pretender.issue(NAME)


@pytest.mark.parametrize("requirement", [ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED])
@pytest.mark.parametrize("name", UNTRUSTED)
def test_a_certificate_that_is_not_to_be_trusted_gets_no_call(
    run: Run, authority: Authority, tls_files: dict[str, str], tmp_path: Path, name: str, requirement: int
) -> None:
    async def test() -> None:
        app = App()
        context = client_context(tls_files, tmp_path, UNTRUSTED[name](authority))
        async with serving(app, tls=server_context(tls_files, requirement)) as port:
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                assert await talk(port, CLOSING, tls=context) == b""
        assert app.calls == []

    run(test())


def test_a_refusal_reaches_a_caller_over_tls(run: Run, tls_files: dict[str, str], tmp_path: Path) -> None:
    async def test() -> None:
        app = App()
        async with serving(app, tls=server_context(tls_files)) as port:
            context = client_context(tls_files, tmp_path, None)
            assert_refused(await talk(port, head_of(MAX_HEAD_BYTES + 1), tls=context), 431)

    run(test())
