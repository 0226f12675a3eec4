"""The client over TLS: who the server is, and who the client is."""

import io
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509

import holdfast
from tests.server.certificates import Authority
from tests.server.served import Served

LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


DOORS = {"http": [], "framed": ["--framed-port", "0"], "processes": ["--framed-port", "0", "--processes", "2"]}


@pytest.fixture(params=DOORS)
def tls(request: pytest.FixtureRequest, authority: Authority) -> list[str | Path]:
    files = authority.sign("server", LOOPBACK)
    doors = DOORS[request.param]
    return ["--store", "memory://", "--tls-cert", files.cert, "--tls-key", files.key, *doors]


def test_a_server_is_trusted_by_its_authority_alone(tls: list[str | Path], authority: Authority) -> None:
    with Served(*tls) as served:
        url = served.url
        with holdfast.open(url, tls_ca=authority.cert) as hf:
            q = hf.queue("q")
            q.enqueue(b"x" * 100_000)
            for message in q.subscribe():
                message.ack()
                break
            assert q.claim(wait=0.01) == []
        with holdfast.open(url) as hf, pytest.raises(holdfast.StoreUnavailable, match="not trusted"):
            hf.queue("q").stats()


def test_a_payload_is_uploaded_over_tls_and_refused_in_the_middle(tls: list[str | Path], authority: Authority) -> None:
    payload = bytes(range(256)) * 4_096 * 3
    with (
        Served(*tls, "--max-payload", "4MiB") as served,
        holdfast.open(served.url, tls_ca=authority.cert) as hf,
    ):
        q = hf.queue("q")
        for source in (io.BytesIO(payload), [payload]):
            q.upload(source)
            [message] = q.claim()
            assert message.payload == payload
        for too_much in (io.BytesIO(payload * 40), iter([payload] * 40)):
            with pytest.raises(holdfast.PayloadTooLarge):
                q.upload(too_much)


def test_a_client_certificate_says_whose_tenant_it_is(tls: list[str | Path], authority: Authority) -> None:
    mine = authority.sign("worker", x509.DNSName("worker.acme"), is_client=True)
    mutual = ["--tls-client-ca", authority.cert, "--mtls-tenants", "worker.acme=acme"]
    with Served(*tls, *mutual) as served:
        url = served.url
        with holdfast.open(url, tls_ca=authority.cert, tls_cert=mine.cert, tls_key=mine.key) as hf:
            hf.queue("q", tenant="acme").enqueue(1)
            with pytest.raises(holdfast.Forbidden):
                hf.queue("q", tenant="other").enqueue(1)
        with (
            holdfast.open(url, tls_ca=authority.cert) as hf,
            pytest.raises(holdfast.StoreUnavailable, match="tls_cert"),
        ):
            hf.queue("q", tenant="acme").enqueue(1)


def test_files_that_are_no_certificates_are_refused_by_their_setting(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    for settings in ({"tls_ca": garbage}, {"tls_cert": garbage}, {"tls_cert": tmp_path / "missing"}, {"tls_key": "x"}):
        with pytest.raises(holdfast.InvalidArgument) as refused:
            holdfast.open("https://127.0.0.1:1", **settings)
        assert refused.value.facts["field"] in settings
