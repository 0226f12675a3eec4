import json
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.doors.identity import Identity, make_identity
from holdfast.doors.identity.tokens import MAX_REMEMBERED, MAX_TOKEN_BYTES
from holdfast.model.errors import InvalidArgument, Unauthenticated
from holdfast.model.scopes import ALL_SCOPES, Scope
from holdfast.service.access import Caller
from holdfast.testing.clock import ManualClock
from tests.doors.credentials import (
    CANARY,
    NOW_S,
    bearer,
    claims,
    jwks,
    private_key,
    public_der,
    public_jwk,
    public_pem,
    public_ssh,
    segment,
    sign,
    token,
)

SECRET = CANARY.encode()
ASYMMETRIC = ("RS256", "ES256", "ES384", "ES512", "EdDSA")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def identity(clock: ManualClock) -> Identity:
    return make_identity(clock=clock, jwt_secret=CANARY)


def with_public_key(clock: ManualClock, algorithm: str, **more: Any) -> Identity:
    return make_identity(clock=clock, jwt_keys=public_pem(private_key(algorithm)).decode(), **more)


async def refusal_of(identity: Identity, given: bytes | str) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as raised:
        await identity.caller_of(bearer(given), None)
    return raised.value


async def caller_or_none(identity: Identity, given: bytes) -> Caller | None:
    """Whatever else is raised, the test fails with it."""
    try:
        return await identity.caller_of(bearer(given), None)
    except Unauthenticated:
        return None


# ---- what is accepted


async def test_a_token_says_tenant_scopes_and_subject(identity: Identity) -> None:
    caller = await identity.caller_of(bearer(token(SECRET, "HS256")), None)
    assert caller == Caller(tenant="acme", scopes=frozenset({Scope.READ, Scope.WRITE}), subject="worker-1")


@pytest.mark.spec("8.6")
@pytest.mark.parametrize("algorithm", ASYMMETRIC)
async def test_a_token_by_each_kind_of_key_is_accepted(clock: ManualClock, algorithm: str) -> None:
    identity = with_public_key(clock, algorithm)
    assert (await identity.caller_of(bearer(token(private_key(algorithm), algorithm)), None)).tenant == "acme"


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256"])
async def test_a_jwk_says_which_algorithm_its_rsa_key_is_for(clock: ManualClock, algorithm: str) -> None:
    key = private_key("RS256")
    identity = make_identity(clock=clock, jwt_keys=jwks(public_jwk(key, kid="a", alg=algorithm)).decode())
    await identity.caller_of(bearer(token(key, algorithm, {"kid": "a"})), None)
    for other in {"RS256", "RS384", "RS512", "PS256"} - {algorithm}:
        assert (await refusal_of(identity, token(key, other, {"kid": "a"}))).facts["reason"] == "algorithm"


async def test_a_kid_is_of_no_matter_where_the_keys_have_none(clock: ManualClock) -> None:
    identity = with_public_key(clock, "ES256")
    await identity.caller_of(bearer(token(private_key("ES256"), "ES256", {"kid": "anything"})), None)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("read", {Scope.READ}),
        ("write read", {Scope.READ, Scope.WRITE}),
        ("read write admin", set(ALL_SCOPES)),
        ("openid  profile read", {Scope.READ}),
        ("READ reads readwrite", set()),
        ("", set()),
        (..., set()),
    ],
)
async def test_scopes_are_words_and_unknown_ones_count_for_nothing(
    identity: Identity, scope: Any, expected: set[Scope]
) -> None:
    assert (await identity.caller_of(bearer(token(SECRET, "HS256", scope=scope)), None)).scopes == expected


async def test_the_tenant_of_an_operator_is_a_star(identity: Identity) -> None:
    assert (await identity.caller_of(bearer(token(SECRET, "HS256", tenant="*")), None)).is_operator


async def test_a_token_without_a_subject_has_an_empty_one(identity: Identity) -> None:
    assert (await identity.caller_of(bearer(token(SECRET, "HS256", sub=...)), None)).subject == ""


@pytest.mark.parametrize("aud", ["holdfast", ["holdfast"], ["other", "holdfast"]])
async def test_an_audience_may_be_one_or_several(identity: Identity, aud: Any) -> None:
    await identity.caller_of(bearer(token(SECRET, "HS256", aud=aud)), None)


@pytest.mark.spec("8.6")
async def test_another_audience_may_be_set(clock: ManualClock) -> None:
    identity = make_identity(clock=clock, jwt_secret=CANARY, jwt_audience="queues")
    await identity.caller_of(bearer(token(SECRET, "HS256", aud="queues")), None)
    assert (await refusal_of(identity, token(SECRET, "HS256"))).facts["reason"] == "audience"


@pytest.mark.spec("8.6")
async def test_an_issuer_is_checked_once_it_is_set(clock: ManualClock) -> None:
    identity = make_identity(clock=clock, jwt_secret=CANARY, jwt_issuer="https://issuer.example")
    await identity.caller_of(bearer(token(SECRET, "HS256", iss="https://issuer.example")), None)
    for wrong in (..., "", "https://issuer.example/", "HTTPS://issuer.example", ["https://issuer.example"], None, 1):
        assert (await refusal_of(identity, token(SECRET, "HS256", iss=wrong))).facts["reason"] == "issuer"


@pytest.mark.parametrize("exp", [NOW_S + 1, NOW_S + 0.5, NOW_S + 10**9])
async def test_a_time_may_be_any_number_of_seconds(identity: Identity, exp: float) -> None:
    await identity.caller_of(bearer(token(SECRET, "HS256", exp=exp)), None)


@pytest.mark.parametrize("name", ["nbf", "iat"])
async def test_an_issuers_clock_may_be_ten_seconds_ahead(identity: Identity, name: str) -> None:
    await identity.caller_of(bearer(token(SECRET, "HS256", **{name: NOW_S + 10})), None)
    later = await refusal_of(identity, token(SECRET, "HS256", **{name: NOW_S + 11}))
    assert later.facts["reason"] == "not_yet_valid"


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER ", b"Bearer   "])
async def test_the_scheme_is_read_in_any_case(identity: Identity, scheme: bytes) -> None:
    first = await identity.caller_of({b"authorization": scheme + token(SECRET, "HS256")}, None)
    # However it is spelled, it is remembered once.
    assert await identity.caller_of(bearer(token(SECRET, "HS256")), None) is first
    assert await identity.caller_of({b"authorization": scheme + token(SECRET, "HS256")}, None) is first


# ---- what is refused


def unsigned(algorithm: Any) -> bytes:
    return segment({"alg": algorithm, "typ": "JWT"}) + b"." + segment(claims()) + b"."


def with_payload(payload: bytes) -> bytes:
    return sign({"alg": "HS256"}, payload, SECRET, "HS256")


def with_time(name: str, text: str) -> bytes:
    """Claims with the time spelled as JSON could not otherwise say it."""
    return with_payload(json.dumps(claims(**{name: 0})).replace(f'"{name}": 0', f'"{name}": {text}').encode())


good = token(SECRET, "HS256")

FORGED: dict[str, tuple[bytes, str]] = {
    **{f"alg {name!r}": (unsigned(name), "algorithm") for name in ("none", "None", "nOnE", "NONE", "", "none ", None)},
    "alg a list": (unsigned(["HS256"]), "algorithm"),
    "alg an object": (unsigned({"HS256": 1}), "algorithm"),
    "no alg": (segment({"typ": "JWT"}) + b"." + segment(claims()) + b".", "algorithm"),
    "none with a good signature": (sign({"alg": "none"}, claims(), SECRET, "HS256"), "algorithm"),
    "HS512 with the secret": (token(SECRET, "HS512"), "algorithm"),
    "RS256 with another's key": (token(private_key("RS256"), "RS256"), "algorithm"),
    "an empty signature": (good.rpartition(b".")[0] + b".", "signature"),
    "another's signature": (token(b"x" * 32, "HS256"), "signature"),
    "a signature cut short": (good.rpartition(b".")[0] + b"." + segment(b"x" * 31), "signature"),
    "a signature in another spelling": (good[:-1] + bytes([good[-1] ^ 1]), "malformed"),
    "other claims under the signature": (
        good.split(b".")[0] + b"." + segment(claims(tenant="*")) + b"." + good.split(b".")[2],
        "signature",
    ),
    "no segments": (b"abc", "malformed"),
    "nothing": (b"", "malformed"),
    "dots": (b"..", "malformed"),
    "four segments": (good + b".abc", "malformed"),
    "an encrypted token": (b".".join([segment({"alg": "dir", "enc": "A256GCM"}), *[b"YQ"] * 4]), "malformed"),
    "a header that is no JSON": (segment(b"{") + good[good.index(b".") :], "malformed"),
    "a header that is a list": (segment(b"[]") + good[good.index(b".") :], "malformed"),
    "a header that is nested": (segment(b"[" * 4_000) + good[good.index(b".") :], "malformed"),
    "bytes that are no ASCII": (b"\xff\xfe" + good, "malformed"),
    "bytes with NUL": (good + b"\0", "malformed"),
    "an unknown crit": (token(SECRET, "HS256", {"crit": ["exp"], "exp": 1}), "malformed"),
    "a crit of its own": (token(SECRET, "HS256", {"crit": ["x"], "x": 1}), "malformed"),
    "an empty crit": (token(SECRET, "HS256", {"crit": []}), "malformed"),
    "an unencoded payload": (token(SECRET, "HS256", {"crit": ["b64"], "b64": False}), "malformed"),
    "a kid that is a number": (token(SECRET, "HS256", {"kid": 7}), "malformed"),
    "a kid that is a list": (token(SECRET, "HS256", {"kid": ["a"]}), "malformed"),
    "a kid of 4 KiB": (token(SECRET, "HS256", {"kid": "k" * 4_096}), "malformed"),
    "a kid of 64 KiB": (token(SECRET, "HS256", {"kid": "k" * 65_536}), "malformed"),
    "an oversized token": (token(SECRET, "HS256", filler="x" * MAX_TOKEN_BYTES), "malformed"),
    "claims that are no object": (with_payload(b"[]"), "malformed"),
    "claims that are no JSON": (with_payload(b"exp=1"), "malformed"),
    "claims that are nested": (with_payload(b"[" * 4_000), "malformed"),
    "claims with a number of 5,000 digits": (with_payload(b'{"exp": 1' + b"0" * 5_000 + b"}"), "malformed"),
    "claims that are not UTF-8": (with_payload(b'{"sub": "\xff"}'), "malformed"),
    "expired": (token(SECRET, "HS256", exp=NOW_S - 1), "expired"),
    "expired this instant": (token(SECRET, "HS256", exp=NOW_S), "expired"),
    "expired long ago": (token(SECRET, "HS256", exp=0), "expired"),
    "nbf in the future": (token(SECRET, "HS256", nbf=NOW_S + 60), "not_yet_valid"),
    "iat in the future": (token(SECRET, "HS256", iat=NOW_S + 60), "not_yet_valid"),
    "no exp": (token(SECRET, "HS256", exp=...), "claims"),
    **{
        f"{name} as {text}": (with_time(name, text), "claims")
        for name in ("exp", "nbf", "iat")
        for text in (
            f'"{NOW_S + 600}"', "true", "false", "null", "NaN", "Infinity", "-Infinity", "-1", "1e999", "[]", "{}",
            str(2**63), str(2**64), "1" + "0" * 400, f"{NOW_S}000", "1e300",
        )
    },
    **{
        f"aud {aud!r}": (token(SECRET, "HS256", aud=aud), "audience")
        for aud in (
            ..., "", "other", "Holdfast", "holdfast ", [], ["other"], [["holdfast"]], {"holdfast": 1}, None, 1, True,
        )
    },
    **{
        f"tenant {tenant!r:.30}": (token(SECRET, "HS256", tenant=tenant), "tenant")
        for tenant in (
            ..., None, 1, True, [], ["acme"], {"acme": 1}, "", "**", "* ", "../acme", "a/b", ".acme", "acme\n",
            "acme\0", "a b", "\uff41cme", "x" * 129, "'; drop table tenants", "a*",
        )
    },
    **{
        f"scope {scope!r}": (token(SECRET, "HS256", scope=scope), "claims")
        for scope in (None, 1, ["read"], {"read": 1})
    },
    **{
        f"sub {sub!r:.30}": (token(SECRET, "HS256", sub=sub), "claims")
        for sub in (None, 1, ["a"], "a\nb", "a\0b", "\x1b[31m", "x" * 257, "a\u202eb", "\ud800")
    },
}  # fmt: skip


@pytest.mark.spec("8.6")
@pytest.mark.parametrize("name", FORGED)
async def test_a_forged_or_confused_token_is_refused_for_its_reason(identity: Identity, name: str) -> None:
    forged, reason = FORGED[name]
    error = await refusal_of(identity, forged)
    assert error.facts == {"reason": reason}
    assert CANARY not in str(error)


PUBLIC_TEXTS: dict[str, Callable[[Any], bytes]] = {
    "PEM": public_pem,
    "PEM without its last newline": lambda key: public_pem(key).rstrip(),
    "DER": public_der,
    "JWK": lambda key: json.dumps(public_jwk(key)).encode(),
    "JWKS": lambda key: jwks(public_jwk(key)),
    "SSH line": public_ssh,
    "nothing": lambda key: b"",
}


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
@pytest.mark.parametrize("text", PUBLIC_TEXTS)
@pytest.mark.parametrize("hashed", ["HS256", "HS384", "HS512"])
async def test_a_public_key_is_no_secret(clock: ManualClock, algorithm: str, text: str, hashed: str) -> None:
    key = private_key(algorithm)
    identity = with_public_key(clock, algorithm)
    forged = sign({"alg": hashed}, claims(), PUBLIC_TEXTS[text](key), hashed)
    assert (await refusal_of(identity, forged)).facts["reason"] == "algorithm"
    # Nor does it help to name the algorithm of the key.
    forged = sign({"alg": algorithm}, claims(), PUBLIC_TEXTS[text](key), hashed)
    assert (await refusal_of(identity, forged)).facts["reason"] == "signature"


@pytest.mark.spec("8.6")
@pytest.mark.parametrize("algorithm", ASYMMETRIC)
@pytest.mark.parametrize("claimed", [*ASYMMETRIC, "RS512", "PS256", "ES256K", "none"])
async def test_a_header_cannot_choose_another_algorithm_for_a_key(
    clock: ManualClock, algorithm: str, claimed: str
) -> None:
    if claimed == algorithm:
        return
    identity = with_public_key(clock, algorithm)
    forged = sign({"alg": claimed}, claims(), private_key(algorithm), algorithm)
    assert (await refusal_of(identity, forged)).facts["reason"] == "algorithm"


@pytest.mark.parametrize(("algorithm", "size"), [("ES256", 64), ("ES384", 96), ("ES512", 132)])
@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"\1"])
async def test_a_psychic_signature_convinces_nobody(
    clock: ManualClock, algorithm: str, size: int, filler: bytes
) -> None:
    signed = segment({"alg": algorithm}) + b"." + segment(claims())
    identity = with_public_key(clock, algorithm)
    for length in (0, 1, size - 1, size, size + 1, 2 * size):
        forged = signed + b"." + segment(filler * length)
        assert (await refusal_of(identity, forged)).facts["reason"] == "signature"


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
async def test_a_token_cannot_bring_its_own_key(clock: ManualClock, algorithm: str) -> None:
    thief = private_key(algorithm, 1)
    forged = token(thief, algorithm, {"jwk": public_jwk(thief), "x5c": ["MIIB"], "kid": "mine"})
    assert (await refusal_of(with_public_key(clock, algorithm), forged)).facts["reason"] == "signature"


@pytest.mark.parametrize(
    "kid", ["../../dev/null", "/dev/null", "' or 1=1 --", "a\0b", "", "k" * 256, "\u202e", "\ud800"]
)
async def test_a_kid_is_only_a_name_to_look_up(clock: ManualClock, kid: str) -> None:
    key = private_key("ES256")
    identity = make_identity(clock=clock, jwt_keys=jwks(public_jwk(key, kid="a")).decode())
    for forged in (token(key, "ES256", {"kid": kid}), sign({"alg": "HS256", "kid": kid}, claims(), b"", "HS256")):
        assert (await refusal_of(identity, forged)).facts["reason"] in ("unknown_key", "algorithm")


@pytest.mark.parametrize("header", ["jku", "x5u"])
async def test_no_request_follows_an_address_in_a_token(clock: ManualClock, header: str) -> None:
    key = private_key("ES256")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/jwks.json"
        for kid in (..., "mine"):
            identity = make_identity(clock=clock, jwt_keys=jwks(public_jwk(key, kid="a")).decode())
            forged = token(private_key("ES256", 1), "ES256", {header: url, "kid": kid})
            assert (await refusal_of(identity, forged)).facts["reason"] in ("unknown_key", "signature")
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "missing"),
        ({b"authorization": b""}, "malformed"),
        ({b"authorization": b"Bearer"}, "malformed"),
        ({b"authorization": b"Bearer "}, "malformed"),
        ({b"authorization": b"Basic dXNlcjpwYXNz"}, "malformed"),
        ({b"authorization": good}, "malformed"),
        ({b"authorization": b"Bearer\t" + good}, "malformed"),
        ({b"authorization": b"Bearer a b"}, "malformed"),
        ({b"x-authorization": b"Bearer " + good}, "missing"),
    ],
)
async def test_a_header_without_a_token_is_refused(
    identity: Identity, headers: dict[bytes, bytes], reason: str
) -> None:
    with pytest.raises(Unauthenticated) as raised:
        await identity.caller_of(headers, None)
    assert raised.value.facts == {"reason": reason}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=st.binary(max_size=400))
async def test_any_bytes_are_refused_and_nothing_else_happens(given: bytes) -> None:
    identity = make_identity(clock=ManualClock(), jwt_secret=CANARY)
    await refusal_of(identity, given)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["tenant", "scope", "sub", "aud", "iat", "nbf", "exp", "iss"])


@settings(max_examples=400, deadline=None)
@given(changes=st.dictionaries(NAMES, JSON, min_size=1))
async def test_whatever_signed_claims_hold_the_answer_is_a_caller_or_a_refusal(changes: dict[str, Any]) -> None:
    identity = make_identity(clock=ManualClock(), jwt_secret=CANARY)
    caller = await caller_or_none(identity, token(SECRET, "HS256", **changes))
    if caller is not None:
        assert caller.tenant == changes.get("tenant", "acme")
        assert caller.scopes <= ALL_SCOPES


@settings(max_examples=300, deadline=None)
@given(header=st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64", "typ", "cty", "jwk", "jku"]), JSON))
async def test_whatever_a_header_holds_the_answer_is_a_caller_or_a_refusal(header: dict[str, Any]) -> None:
    identity = make_identity(clock=ManualClock(), jwt_secret=CANARY)
    if await caller_or_none(identity, token(SECRET, "HS256", header)) is not None:
        assert header.get("alg", "HS256") == "HS256"


# ---- what is remembered


async def test_a_remembered_token_is_refused_when_it_ends(identity: Identity, clock: ManualClock) -> None:
    given = bearer(token(SECRET, "HS256", exp=NOW_S + 60))
    first = await identity.caller_of(given, None)
    clock.advance(59_999)
    assert await identity.caller_of(given, None) is first
    clock.advance(1)
    for _ in range(2):
        with pytest.raises(Unauthenticated, match="expired"):
            await identity.caller_of(given, None)


async def test_a_refused_token_is_not_remembered(identity: Identity, clock: ManualClock) -> None:
    early = bearer(token(SECRET, "HS256", nbf=NOW_S + 60))
    with pytest.raises(Unauthenticated):
        await identity.caller_of(early, None)
    clock.advance(60_000)
    await identity.caller_of(early, None)


async def test_only_a_limited_number_of_tokens_is_remembered(identity: Identity) -> None:
    kept = bearer(token(SECRET, "HS256", sub="kept"))
    lost = bearer(token(SECRET, "HS256", sub="lost"))
    kept_caller, lost_caller = await identity.caller_of(kept, None), await identity.caller_of(lost, None)
    for number in range(MAX_REMEMBERED - 1):
        await identity.caller_of(bearer(token(SECRET, "HS256", sub=str(number))), None)
        if number % 100 == 0:
            assert await identity.caller_of(kept, None) is kept_caller
    assert await identity.caller_of(kept, None) is kept_caller
    # Verified anew, and the same in all but identity.
    again = await identity.caller_of(lost, None)
    assert again == lost_caller
    assert again is not lost_caller


# ---- what is shown


async def test_no_part_of_a_secret_or_token_is_shown(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    identity = make_identity(clock=clock, jwt_secret=CANARY)
    shown = [repr(identity), str(vars(identity))]
    for forged in (token(b"x" * 32, "HS256", sub=CANARY, tenant=CANARY), token(SECRET, "HS256", tenant=f"/{CANARY}")):
        error = await refusal_of(identity, forged)
        shown += [str(error), repr(error), repr(error.facts), repr(error.__cause__)]
        shown += [part.decode() for part in forged.split(b".") if part.decode() in str(error)]
    for wrong in ({"jwt_secret": CANARY[:31]}, {"jwt_secret": f"-----BEGIN {CANARY}"}, {"jwt_keys": f"/{CANARY}"},
                  {"jwt_keys": f"https://user:{CANARY}@host/"}, {"jwt_keys": f'{{"keys": "{CANARY}"}}'}):  # fmt: skip
        with pytest.raises(InvalidArgument) as raised:
            make_identity(clock=clock, **wrong)
        shown += [str(raised.value), repr(raised.value.facts)]
    out, err = capfd.readouterr()
    for text in (*shown, out, err, caplog.text):
        assert "canary" not in text
