"""A server listens on loopback unless callers are known, and over TLS when it has a certificate."""

import asyncio
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography import x509

from holdfast.model.errors import InvalidArgument, Unavailable
from holdfast.server.doors.listen import listening_sockets, make_tls
from holdfast.server.kinds import Secret
from holdfast.server.settings import Settings
from tests.server.certificates import Authority
from tests.server.served import Served

SECRET = "a secret of at least thirty-two bytes"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.10"])
def test_without_identities_a_loopback_address_is_listened_on(host: str) -> None:
    sockets = listening_sockets(Settings(host=host, port=0))

    assert sockets
    assert all(ipaddress.ip_address(each.getsockname()[0]).is_loopback for each in sockets)
    assert len({each.getsockname()[1] for each in sockets}) == 1
    for each in sockets:
        each.close()


@pytest.mark.spec("8.6")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "8.8.8.8"])
def test_without_identities_any_other_address_is_refused_before_it_is_bound(host: str) -> None:
    with pytest.raises(InvalidArgument, match=r"can be reached from other machines.*set jwt_secret"):
        listening_sockets(Settings(host=host, port=0))


def test_a_name_is_judged_by_every_address_it_resolves_to() -> None:
    name = socket.gethostname()
    if all(ipaddress.ip_address(address[4][0]).is_loopback for address in socket.getaddrinfo(name, 0)):
        for each in listening_sockets(Settings(host=name, port=0)):
            each.close()
    else:
        with pytest.raises(InvalidArgument, match="can be reached from other machines"):
            listening_sockets(Settings(host=name, port=0))


def test_with_identities_every_address_is_listened_on() -> None:
    [bound] = listening_sockets(Settings(host="0.0.0.0", port=0, jwt_secret=Secret(SECRET)))

    bound.close()


def test_a_name_that_is_not_found_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"host 'nowhere\.invalid' is not a name"):
        listening_sockets(Settings(host="nowhere.invalid"))


def test_a_port_in_use_is_worth_another_try() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port} of 127.0.0.1 is in use"):
            listening_sockets(Settings(port=port))


def test_files_that_are_no_certificates_are_refused_by_the_settings_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("server")
    other = authority.sign("other")
    garbage = tmp_path / "garbage"
    garbage.write_text("nothing of the kind")
    good = {"tls_cert": str(files.cert), "tls_key": str(files.key)}
    wrong: dict[str, dict[str, str]] = {
        "tls_cert 'missing' cannot be read: No such file": {"tls_cert": "missing"},
        "tls_key 'missing' cannot be read: No such file": {**good, "tls_key": "missing"},
        "tls_client_ca 'missing' cannot be read: No such file": {**good, "tls_client_ca": "missing"},
        "tls_cert .* are not a certificate and its key": {**good, "tls_cert": str(garbage)},
        "its key in .* are not a certificate and its key": {**good, "tls_key": str(other.key)},
        "tls_client_ca .* holds no certificates": {**good, "tls_client_ca": str(garbage)},
    }

    for message, settings in wrong.items():
        with pytest.raises(InvalidArgument, match=message):
            make_tls(Settings(**settings))
    assert make_tls(Settings(**good)) is not None
    assert make_tls(Settings()) is None


async def ask(server: Served, trusts: Path, shows: Any = None, token: str | None = None) -> int:
    context = ssl.create_default_context(cafile=str(trusts))
    if shows is not None:
        context.load_cert_chain(shows.cert, shows.key)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{server.url}/v1/queue/dequeue", json={"queue": "q"}, ssl=context) as answer,
    ):
        await answer.read()
        return answer.status


async def test_client_certificates_are_asked_for_and_are_one_way_in_beside_tokens(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    files = authority.sign("server", address)
    known = authority.sign("known", x509.DNSName("worker.acme"), is_client=True)
    unknown = authority.sign("unknown", x509.DNSName("worker.globex"), is_client=True)
    forged = stranger.sign("forged", x509.DNSName("worker.acme"), is_client=True)
    token = jwt.encode({"tenant": "acme", "scope": "read", "exp": 1 << 33, "aud": "holdfast"}, SECRET)
    tls = ("--store", "memory://", "--tls-cert", files.cert, "--tls-key", files.key)
    certificates = ("--tls-client-ca", authority.cert, "--mtls-tenants", "worker.acme=acme")

    with Served(*tls, *certificates) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert await ask(server, authority.cert, known) == 200
        assert await ask(server, authority.cert, unknown) == 401
        for shown in (None, forged):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await ask(server, authority.cert, shown)
        server.signal()
        assert await asyncio.to_thread(server.end) == 0, server.log
    with Served(*tls, *certificates, environment={"HOLDFAST_JWT_SECRET": SECRET}) as server:
        assert await ask(server, authority.cert, known) == 200
        assert await ask(server, authority.cert, token=token) == 200
        assert await ask(server, authority.cert) == 401
        server.signal()
        assert await asyncio.to_thread(server.end) == 0, server.log
    assert SECRET not in server.log
