"""The keys that tokens are checked with: the settings and documents that are taken, and a file of keys that changes."""

import base64
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.doors.identity import Open, TokenOrCertificate, make_identity
from holdfast.doors.identity.keys import MAX_KEYS
from holdfast.doors.identity.tokens import TokenIdentity
from holdfast.model.errors import InvalidArgument
from holdfast.service.access import ANYONE
from holdfast.testing.clock import ManualClock
from tests.doors.credentials import (
    CANARY,
    Authority,
    bearer,
    es_jwk,
    es_token,
    is_accepted,
    jwks,
    private_key,
    private_pem,
    public_der,
    public_jwk,
    public_pem,
    public_ssh,
    token,
)

# ---- settings


async def test_with_nothing_configured_anyone_may_call(clock: ManualClock) -> None:
    identity = make_identity(clock=clock)
    assert isinstance(identity, Open)
    assert await identity.caller_of({b"authorization": b"Bearer rubbish"}, None) is ANYONE


def test_what_is_configured_is_what_is_asked_for(clock: ManualClock) -> None:
    assert isinstance(make_identity(clock=clock, jwt_secret=CANARY), TokenIdentity)
    both = make_identity(clock=clock, jwt_secret=CANARY, mtls_tenants="a.example=acme")
    assert isinstance(both, TokenOrCertificate)


key = private_key("RS256")

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an empty secret": ({"jwt_secret": ""}, "jwt_secret"),
    "a short secret": ({"jwt_secret": "x" * 31}, "jwt_secret"),
    "a secret that is a PEM key": ({"jwt_secret": public_pem(key).decode()}, "jwt_secret"),
    "a secret that is an indented PEM key": ({"jwt_secret": "\n  " + public_pem(key).decode()}, "jwt_secret"),
    "a secret that is a PEM private key": ({"jwt_secret": private_pem(key).decode()}, "jwt_secret"),
    "a secret that is a JWK": ({"jwt_secret": json.dumps(public_jwk(key))}, "jwt_secret"),
    "a secret that is a JWKS": ({"jwt_secret": jwks(public_jwk(key)).decode()}, "jwt_secret"),
    "a secret that is an SSH line": ({"jwt_secret": public_ssh(key).decode()}, "jwt_secret"),
    "a secret that is an SSH line of EC": ({"jwt_secret": public_ssh(private_key("ES256")).decode()}, "jwt_secret"),
    "a secret that is bare base64 of a key": (
        {"jwt_secret": base64.b64encode(public_der(key)).decode()},
        "jwt_secret",
    ),
    "a secret and keys": ({"jwt_secret": CANARY, "jwt_keys": public_pem(key).decode()}, "jwt_keys"),
    "empty keys": ({"jwt_keys": ""}, "jwt_keys"),
    "blank keys": ({"jwt_keys": "  "}, "jwt_keys"),
    "keys in a file that is missing": ({"jwt_keys": "/nowhere/keys.pem"}, "jwt_keys"),
    "keys in a folder": ({"jwt_keys": "/"}, "jwt_keys"),
    "a NUL in the file's name": ({"jwt_keys": "a\0b"}, "jwt_keys"),
    "a private key": ({"jwt_keys": private_pem(key).decode()}, "jwt_keys"),
    "a private key beside a public one": ({"jwt_keys": (public_pem(key) + private_pem(key)).decode()}, "jwt_keys"),
    "a PEM block that is garbage": (
        {"jwt_keys": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"},
        "jwt_keys",
    ),
    "a PEM block without its end": ({"jwt_keys": "-----BEGIN PUBLIC KEY-----\nAAAA"}, "jwt_keys"),
    "an RSA key of 1,024 bits": ({"jwt_keys": public_pem(private_key("RSA-1024")).decode()}, "jwt_keys"),
    "a key on another curve": ({"jwt_keys": public_pem(private_key("ES256K")).decode()}, "jwt_keys"),
    "a JWKS without keys": ({"jwt_keys": '{"keys": []}'}, "jwt_keys"),
    "a JWKS of secrets": ({"jwt_keys": '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'}, "jwt_keys"),
    "a JWKS that is none": ({"jwt_keys": '{"keys": {}}'}, "jwt_keys"),
    "a JWKS of too many keys": ({"jwt_keys": jwks(*[es_jwk()] * (MAX_KEYS + 1)).decode()}, "jwt_keys"),
    "JSON that ends early": ({"jwt_keys": '{"keys": ['}, "jwt_keys"),
    "a URL without a host": ({"jwt_keys": "https:///keys"}, "jwt_keys"),
    "a URL with a password": ({"jwt_keys": "https://a:b@host/keys"}, "jwt_keys"),
    "a URL with a port of letters": ({"jwt_keys": "https://host:abc/keys"}, "jwt_keys"),
    "a URL with a line break": ({"jwt_keys": "https://host/keys\r\nX: y"}, "jwt_keys"),
    "an issuer without keys": ({"jwt_issuer": "https://issuer.example"}, "jwt_issuer"),
    "an empty issuer": ({"jwt_secret": CANARY, "jwt_issuer": ""}, "jwt_issuer"),
    "an empty audience": ({"jwt_secret": CANARY, "jwt_audience": " "}, "jwt_audience"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_refused_by_its_name(clock: ManualClock, name: str) -> None:
    given, setting = WRONG[name]
    with pytest.raises(InvalidArgument) as raised:
        make_identity(clock=clock, **given)
    assert raised.value.facts == {"setting": setting}
    assert setting in str(raised.value)


@pytest.mark.parametrize(
    "secret", ["x" * 32, "ü" * 16, "sk-" + "x" * 40, base64.b64encode(b"MI" * 20).decode(), "1" * 64]
)
def test_any_long_text_may_be_a_secret(clock: ManualClock, secret: str) -> None:
    make_identity(clock=clock, jwt_secret=secret)


# ---- documents


async def test_several_pem_keys_and_certificates_count_each(clock: ManualClock, tmp_path: Path) -> None:
    authority = Authority()
    issued, issued_key = authority.issue()
    pem = public_pem(private_key("RS256")) + b"comment\n" + public_pem(private_key("EdDSA"))
    file = tmp_path / "keys.pem"
    file.write_bytes(pem + issued.public_bytes(Encoding.PEM))
    identity = make_identity(clock=clock, jwt_keys=str(file))
    for signer, algorithm in (
        (private_key("RS256"), "RS256"),
        (private_key("EdDSA"), "EdDSA"),
        (issued_key, "ES256"),
    ):
        assert await is_accepted(identity, bearer(token(signer, algorithm)))
    assert not await is_accepted(identity, bearer(token(private_key("EdDSA", 1), "EdDSA")))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512", "EdDSA"])
async def test_a_jwks_file_serves_each_kind_of_key(clock: ManualClock, tmp_path: Path, algorithm: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks(es_jwk(9, "other"), public_jwk(private_key(algorithm), kid="a")))
    identity = make_identity(clock=clock, jwt_keys=str(file))
    assert await is_accepted(identity, bearer(token(private_key(algorithm), algorithm, {"kid": "a"})))
    assert await is_accepted(identity, bearer(token(private_key(algorithm), algorithm)))
    assert not await is_accepted(identity, bearer(token(private_key(algorithm), algorithm, {"kid": "other"})))


async def test_a_single_jwk_is_a_set_of_one(clock: ManualClock) -> None:
    identity = make_identity(clock=clock, jwt_keys=json.dumps(es_jwk(0, "a")))
    assert await is_accepted(identity, es_token(0, "a"))


async def test_an_edwards_448_key_signs_tokens_too(clock: ManualClock) -> None:
    identity = make_identity(
        clock=clock, jwt_keys=jwks(public_jwk(private_key("Ed448"), kid="a", alg="Ed448")).decode()
    )
    assert await is_accepted(identity, bearer(token(private_key("Ed448"), "EdDSA", {"kid": "a"})))


UNUSABLE_JWKS: dict[str, Any] = {
    "for encryption": es_jwk(1, "x", use="enc"),
    "not to verify": es_jwk(1, "x", key_ops=["sign"]),
    "with its private part": es_jwk(1, "x", d="AAAA"),
    "on no curve": es_jwk(1, "x", crv="P-999"),
    "off its curve": es_jwk(1, "x", y=es_jwk(2)["y"]),
    "of another algorithm": es_jwk(1, "x", alg="RS256"),
    "of a curve that is not its algorithm's": es_jwk(1, "x", alg="ES384"),
    "for HMAC": {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlYw", "kid": "x", "alg": "HS256"},
    "of 1,024 bits": public_jwk(private_key("RSA-1024"), kid="x"),
    "with numbers for text": {"kty": "RSA", "n": 1, "e": 2, "kid": "x"},
    "with a huge exponent": {**public_jwk(key, kid="x"), "e": "A" * 4_000},
    "without a kind": {"kid": "x"},
    "with a list for a kid": es_jwk(1) | {"kid": ["x"]},
    "with a number for an algorithm": es_jwk(1, "x", alg=5),
    "with a number for operations": es_jwk(1, "x", key_ops="sign"),
    "a text": "key",
    "a list": [],
    "nothing": None,
}


@pytest.mark.parametrize("name", UNUSABLE_JWKS)
async def test_an_unusable_key_is_passed_over_and_the_others_count(clock: ManualClock, name: str) -> None:
    identity = make_identity(clock=clock, jwt_keys=jwks(UNUSABLE_JWKS[name], es_jwk(0, "a")).decode())
    assert await is_accepted(identity, es_token(0, "a"))
    assert not await is_accepted(identity, es_token(1, "x"))
    assert not await is_accepted(identity, es_token(1))


# ---- a file that changes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(es_jwk(0, "a")))
    return path


@pytest.mark.spec("8.6")
async def test_a_changed_file_is_read_again_within_a_second(clock: ManualClock, file: Path) -> None:
    identity = make_identity(clock=clock, jwt_keys=str(file))
    assert await is_accepted(identity, es_token(0, "a"))
    file.write_bytes(jwks(es_jwk(1, "b")))
    # A token that names a key not seen before makes it look at once.
    assert await is_accepted(identity, es_token(1, "b"))
    assert not await is_accepted(identity, es_token(0, "a"))
    file.write_bytes(jwks(es_jwk(0, "a"), es_jwk(2, "c")))
    clock.advance(1_000)
    assert not await is_accepted(identity, es_token(1, "b"))
    assert await is_accepted(identity, es_token(0, "a"))


async def test_a_token_remembered_under_a_withdrawn_key_is_forgotten(clock: ManualClock, file: Path) -> None:
    identity = make_identity(clock=clock, jwt_keys=str(file))
    given = es_token(0, "a")
    assert await identity.caller_of(given, None) is await identity.caller_of(given, None)
    # Put in its place, as a deployment does it.
    other = file.with_suffix(".new")
    other.write_bytes(jwks(es_jwk(1, "b")))
    os.replace(other, file)
    clock.advance(1_000)
    assert not await is_accepted(identity, given)


@pytest.mark.parametrize("garbage", [b"", b"{", b'{"keys": 5}', b"\xff" * 100, b"[" * 100_000, b" " * 300_000, None])
async def test_a_file_that_is_garbage_or_gone_leaves_the_keys_and_is_logged_once(
    clock: ManualClock, file: Path, garbage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    identity = make_identity(clock=clock, jwt_keys=str(file))
    if garbage is None:
        file.unlink()
    else:
        file.write_bytes(garbage)
    with caplog.at_level(logging.WARNING, "holdfast"):
        for _ in range(3):
            clock.advance(1_000)
            assert await is_accepted(identity, es_token(0, "a"))
    assert len([record for record in caplog.records if "jwt_keys" in record.message]) == 1
    file.write_bytes(jwks(es_jwk(1, "b")))
    clock.advance(1_000)
    assert await is_accepted(identity, es_token(1, "b"))
    assert not await is_accepted(identity, es_token(0, "a"))


async def test_an_emptied_set_in_a_file_withdraws_every_key(clock: ManualClock, file: Path) -> None:
    identity = make_identity(clock=clock, jwt_keys=str(file))
    file.write_bytes(jwks())
    clock.advance(1_000)
    assert not await is_accepted(identity, es_token(0, "a"))
