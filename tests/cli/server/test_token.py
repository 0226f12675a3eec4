"""`holdfast token`: tokens that a server accepts, and what a given one is worth."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jwt
import pytest

import holdfast
from holdfast.model.extras import MODULES
from tests.cli.conftest import assert_refused
from tests.doors.credentials import jwks, private_key, private_pem, public_jwk, public_pem
from tests.doors.key_server import KeyServer
from tests.server.served import Served

Run = Callable[..., Any]
SECRET = "canary 0123456789 0123456789 0123456789"

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def secret(alone: None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOLDFAST_JWT_SECRET", SECRET)
    return SECRET


def made(run: Run, *arguments: object) -> str:
    ran = run("token", *arguments)
    assert (ran.code, ran.err) == (0, ""), ran
    [line] = ran.out.splitlines()
    return str(line)


def check(run: Run, token: str, *arguments: object) -> Any:
    return run("token", "--check", token, "--json", *arguments)


# --- Making --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("8.13")
def test_a_server_accepts_the_token_for_its_tenant_and_scopes(run: Run, secret: str) -> None:
    token = made(run, "--tenant", "acme", "--scope", "write", "--ttl", "10m", "--subject", "ci")
    with Served("--store", "memory://", environment={"HOLDFAST_JWT_SECRET": secret}) as server:
        with holdfast.open(server.url, token=token) as hf:
            assert hf.queue("jobs", tenant="acme").enqueue(b"x")
            for refused in (
                lambda: hf.queue("jobs", tenant="acme").claim(),
                lambda: hf.queue("jobs", tenant="other").enqueue(b"x"),
            ):
                with pytest.raises(holdfast.Forbidden):
                    refused()
        with holdfast.open(server.url, token=made(run, "-T", "*", "--scope", "admin")) as hf:
            assert [each.tenant for each in hf.tenants()] == ["acme"]


@pytest.mark.spec("8.13")
def test_the_claims_are_those_of_the_flags_and_the_settings(run: Run, secret: str, tmp_path: Path) -> None:
    (tmp_path / "h.toml").write_text('jwt_issuer = "ops"\njwt_audience = "queues"\n[client]\nurl = "http://x"\n')
    ran = run("token", "-T", "acme", "--ttl", "90s", "--subject", "ci", "--config", "h.toml", "--json")

    answer = ran.json
    claims = jwt.decode(answer["token"], secret, ["HS256"], audience="queues", issuer="ops")
    assert claims == answer["claims"]
    assert (claims["tenant"], claims["scope"], claims["sub"]) == ("acme", "read write", "ci")
    assert 90 <= claims["exp"] - claims["iat"] <= 91
    assert answer["expires_at"] == claims["exp"] * 1_000


def test_a_secret_may_lie_in_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")

    token = made(run, "-T", "acme", "--jwt-secret-file", "secret")

    assert jwt.decode(token, SECRET, ["HS256"], audience="holdfast")["tenant"] == "acme"


@pytest.mark.spec("8.13")
@pytest.mark.parametrize("kind", ["RS256", "ES256", "ES384", "EdDSA"])
def test_a_private_key_signs_with_the_algorithm_of_its_kind(run: Run, tmp_path: Path, kind: str) -> None:
    key = private_key(kind)
    (tmp_path / "key.pem").write_bytes(private_pem(key))
    (tmp_path / "public.pem").write_bytes(public_pem(key))

    token = made(run, "-T", "acme", "--key", "key.pem")

    assert jwt.get_unverified_header(token) == {"alg": kind, "typ": "JWT"}
    assert check(run, token, "--jwt-keys", "public.pem").json["accepted"]
    assert check(run, token, "--key", "key.pem").json["signed_by"] == f"--key ({kind})"


def test_a_key_has_the_kid_and_the_algorithm_that_the_servers_keys_give_it(run: Run, tmp_path: Path) -> None:
    key, other = private_key("RS256"), private_key("ES256")
    (tmp_path / "key.pem").write_bytes(private_pem(key))
    (tmp_path / "keys.json").write_bytes(
        jwks(public_jwk(other, kid="old"), public_jwk(key, kid="2026-11", alg="PS256"))
    )

    token = made(run, "-T", "acme", "--key", "key.pem", "--jwt-keys", "keys.json")

    assert jwt.get_unverified_header(token) == {"alg": "PS256", "kid": "2026-11", "typ": "JWT"}
    answer = check(run, token, "--jwt-keys", "keys.json").json
    assert answer["signed_by"] == "key 2 of 2 in jwt_keys (PS256, kid 2026-11)"


def test_a_private_jwk_signs_with_its_own_kid(run: Run, tmp_path: Path) -> None:
    key = private_key("ES256")
    document = jwt.algorithms.ECAlgorithm.to_jwk(key, as_dict=True)
    (tmp_path / "key.json").write_text(json.dumps({**document, "kid": "k1"}))

    token = made(run, "-T", "acme", "--key", "key.json")

    assert jwt.get_unverified_header(token)["kid"] == "k1"


def test_keys_may_be_a_url(run: Run, tmp_path: Path) -> None:
    key = private_key("ES256")
    (tmp_path / "key.pem").write_bytes(private_pem(key))
    with closing(KeyServer()) as server:
        server.publish(public_jwk(key, kid="k1"))
        token = made(run, "-T", "acme", "--key", "key.pem", "--jwt-keys", server.url)
        assert check(run, token, "--jwt-keys", server.url).json["accepted"]
        server.answer = server.document(b"", status=503)
        ran = run("token", "-T", "acme", "--key", "key.pem", "--jwt-keys", server.url)
        assert (ran.code, ran.out) == (75, "")
        assert "jwt_keys" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tenant", "a/b"), ("a/b",)),
        (("--tenant", "acme", "--scope", "owner"), ("scope 'owner'", "read, write and admin")),
        (("--tenant", "acme", "--scope", ""), ("scope",)),
        (("--tenant", "acme", "--ttl", "soon"), ("ttl 'soon'", "duration")),
        (("--tenant", "acme", "--ttl", "0"), ("ttl '0'", "1s to 3650d")),
        (("--tenant", "acme", "--ttl", "5000d"), ("3650d",)),
        (("--tenant", "acme", "--subject", "x" * 300), ("a server would refuse", "sub claim")),
    ],
)
@pytest.mark.usefixtures("secret")
def test_what_no_server_would_accept_is_refused(run: Run, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_refused(run("token", *arguments), 4, *words)


def test_what_is_missing_or_weak_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert_refused(run("token", "-T", "acme"), 2, "jwt_secret", "--key")
    assert_refused(run("token", "-T", "acme", "--jwt-keys", str(tmp_path / "none.pem")), 2, "jwt_keys", "No such file")
    assert_refused(run("token", "-T", "acme", "--key", "nowhere.pem"), 4, "nowhere.pem: No such file")
    key = private_key("ES256")
    (tmp_path / "public.pem").write_bytes(public_pem(key))
    assert_refused(run("token", "-T", "acme", "--jwt-keys", "public.pem"), 2, "jwt_keys holds public keys", "--key")
    assert_refused(run("token", "-T", "acme", "--key", "public.pem"), 4, "--key: it contains no private key")
    (tmp_path / "other.pem").write_bytes(private_pem(private_key("ES256", 1)))
    refused = run("token", "-T", "acme", "--key", "other.pem", "--jwt-keys", "public.pem")
    assert_refused(refused, 4, "its public key is not in jwt_keys")
    (tmp_path / "odd.pem").write_bytes(private_pem(private_key("ES256K")))
    assert_refused(run("token", "-T", "acme", "--key", "odd.pem"), 4, "--key", "another curve")

    monkeypatch.setenv("HOLDFAST_JWT_SECRET", "canary")
    refused = run("token", "-T", "acme")
    assert_refused(refused, 2, "jwt_secret has 6 bytes")
    assert "canary" not in refused.err
    monkeypatch.setenv("HOLDFAST_JWT_SECRET", SECRET)
    assert_refused(run("token"), 2, "--tenant")
    assert_refused(run("token", "-T", "acme", "--key", "other.pem"), 2, "--key and jwt_secret")


def test_without_the_server_extra_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "server", ("jwt", "not_a_module_of_this_world"))

    assert_refused(run("token", "-T", "acme"), 2, "pip install 'holdfast[server]'")


def test_the_command_itself_loads_no_server() -> None:
    program = "import sys, holdfast.cli.server.token; print('jwt' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


# --- Explaining ----------------------------------------------------------------------------------------------------


def signed(secret: str = SECRET, **changes: Any) -> str:
    claims = {"tenant": "acme", "scope": "read", "aud": "holdfast", "exp": 1 << 33, **changes}
    return jwt.encode({name: value for name, value in claims.items() if value is not ...}, secret, "HS256")


@pytest.mark.spec("8.13")
@pytest.mark.usefixtures("secret")
def test_a_good_token_is_explained(run: Run) -> None:
    ran = check(run, signed(sub="ci"))

    assert ran.code == 0
    assert ran.json["accepted"] is True
    assert ran.json["signed_by"] == "jwt_secret (HS256)"
    assert ran.json["claims"]["sub"] == "ci"
    assert ran.json["header"]["alg"] == "HS256"
    assert ran.json["expires_at"] == (1 << 33) * 1_000
    assert ran.json["may"] == ["claim, settle and inspect messages in tenant acme"]
    assert "in every tenant" in check(run, signed(tenant="*", scope="admin")).out
    assert check(run, signed(scope="other words")).json["may"] == []


@pytest.mark.spec("8.13")
@pytest.mark.parametrize(
    ("token", "reason", "words"),
    [
        (signed(exp=1_000_000_000), "expired", "expired"),
        (signed(exp=...), "claims", "no exp claim"),
        (signed(aud="elsewhere"), "audience", "jwt_audience"),
        (signed(tenant="a/b"), "tenant", "tenant claim"),
        (signed(nbf=1 << 33), "not_yet_valid", "nbf"),
        (signed("another secret of thirty-two bytes"), "signature", "not signed by a key of this server"),
        (jwt.encode({"tenant": "acme"}, None, "none"), "algorithm", "does not accept"),
        ("not a token", "malformed", "not a JWT"),
    ],
)
@pytest.mark.usefixtures("secret")
def test_a_refused_token_is_explained_in_the_servers_words(run: Run, token: str, reason: str, words: str) -> None:
    ran = check(run, token)

    assert ran.code == 4
    assert (ran.json["accepted"], ran.json["reason"], ran.json["may"]) == (False, reason, None)
    assert words in ran.json["message"]
    assert (ran.json["signed_by"] is None) == (reason in ("signature", "algorithm", "malformed"))


@pytest.mark.usefixtures("secret")
def test_people_read_since_when_and_until_when(run: Run) -> None:
    ran = run("token", "--check", signed(exp=1_000_000_000))
    assert ran.code == 4
    assert "accepted" in ran.out
    assert "no: the token has expired; get a new one (expired)" in ran.out
    assert "2001-09-09" in ran.out
    assert "ago)" in ran.out

    ran = run("token", "--check", "-", stdin=f"Bearer {signed()}\n".encode())
    assert ran.code == 0
    assert "(in " in ran.out


@pytest.mark.usefixtures("secret")
def test_a_claim_cannot_pass_for_the_verdict_or_steer_the_terminal(run: Run) -> None:
    ran = run("token", "--check", signed("x" * 32, **{"accepted": "yes", "\x1b[2J": "\x1b[2J\nmay everything"}))

    assert ran.code == 4
    assert "\x1b" not in ran.out
    verdict, *rest = ran.out.splitlines()
    assert verdict.split()[:2] == ["accepted", "no:"]
    assert not any(line.startswith(("accepted", "may")) for line in rest)


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 5_000,
        b'{"exp": 1e300, "iat": 253402300799, "nbf": -1}',
        b'{"sub": "\\ud800"}',
        b'{"exp": 99999999999999999999999999, "iat": true}',
        b"\xff\xfe",
        b"[]",
    ],
)
@pytest.mark.usefixtures("secret")
def test_whatever_is_in_a_token_is_explained_without_a_fault(run: Run, payload: bytes) -> None:
    token = jwt.PyJWS().encode(payload, SECRET, "HS256", headers={"odd": "\ud800"})
    for arguments in ((), ("--json",)):
        ran = run("token", "--check", token, *arguments)
        assert (ran.code, ran.err) == (4, "")


def test_without_keys_a_token_is_shown_but_not_vouched_for(run: Run) -> None:
    ran = check(run, signed())

    assert ran.code == 2
    assert ran.json["accepted"] is None
    assert ran.json["claims"]["tenant"] == "acme"
    assert "jwt_secret" in ran.err


@pytest.mark.usefixtures("secret")
def test_check_takes_no_claims(run: Run) -> None:
    assert_refused(run("token", "--check", signed(), "-T", "acme"), 2, "--check")
    assert_refused(run("token", "--check", "-"), 2, "the token to check is empty")
