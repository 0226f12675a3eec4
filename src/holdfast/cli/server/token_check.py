"""`holdfast token --check`: show the contents of a token, and whether a server accepts it."""

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from holdfast.cli.failures import REFUSED, Usage, printable
from holdfast.cli.output import Output, duration, echo_json, instant
from holdfast.cli.server.token import identity_of_key, read_private_key, verifying_identity
from holdfast.clock import SystemClock
from holdfast.model.errors import Unauthenticated
from holdfast.model.scopes import Scope

if TYPE_CHECKING:
    from holdfast.doors.identity.keys import Key, KeySet
    from holdfast.doors.identity.tokens import TokenIdentity
    from holdfast.server.settings import Settings
    from holdfast.service.access import Caller

_ABILITIES = {
    Scope.READ: "claim, settle and inspect messages",
    Scope.WRITE: "enqueue",
    Scope.ADMIN: "manage queues and policies",
}


# 9999-01-01. Later instants are not shown, because a time zone ahead of UTC could show the year 10000.
_YEAR_9999_S = 253_370_764_800


class TokenVerdict(NamedTuple):
    """The decision of a server about a token."""

    caller: "Caller | None" = None
    # The key that signed the token, also if its claims are refused.
    key: str | None = None
    reason: str | None = None
    message: str | None = None


class _Unverified(NamedTuple):
    """The header and claims of a token, not verified. A part that cannot be read is None."""

    header: dict[str, Any] | None
    claims: dict[str, Any] | None


def check_token(settings: "Settings", key: bytes | None, token: bytes, *, as_json: bool) -> None:
    """Print the token's contents. Exit with 4 if a server with these settings would refuse it, with 2 without a key."""
    unverified = _read(token)
    has_keys = key is not None or settings.jwt_secret is not None or settings.jwt_keys is not None
    verdict = asyncio.run(_check(settings, key, token)) if has_keys else TokenVerdict()
    accepted = None if not has_keys else verdict.caller is not None
    if as_json:
        echo_json(_as_json(unverified, verdict, accepted))
    else:
        Output().record(_as_record(unverified, verdict, accepted))
    if accepted is None:
        raise Usage("the signature was not checked: give jwt_secret, jwt_secret_file, jwt_keys or --key FILE")
    if not accepted:
        raise typer.Exit(REFUSED)


async def _check(settings: "Settings", key: bytes | None, token: bytes) -> TokenVerdict:
    async with verifying_identity(settings) as identity:
        signing = None if key is None else read_private_key(key, identity)
        if identity is not None:
            return await _verdict(identity, "jwt_keys" if settings.jwt_secret is None else "jwt_secret", token)
        assert signing is not None, "without jwt_secret and jwt_keys there is --key"
        return await _verdict(identity_of_key(signing, settings), "--key", token)


async def _verdict(identity: "TokenIdentity", name: str, token: bytes) -> TokenVerdict:
    signed_by: str | None = None
    try:
        signed = await identity.verify_signature(token)
        signed_by = _describe(signed.key, signed.keys, name)
        return TokenVerdict(identity.identify(signed.payload).caller, signed_by)
    except Unauthenticated as error:
        return TokenVerdict(None, signed_by, str(error.facts.get("reason", error.code)), error.message)


def _describe(key: "Key", keys: "KeySet", name: str) -> str:
    if name != "jwt_keys":
        return f"{name} ({key.algorithm})"
    number = next(number for number, each in enumerate(keys.all, 1) if each is key)
    kid = "" if key.kid is None else f", kid {key.kid}"
    return f"key {number} of {len(keys.all)} in jwt_keys ({key.algorithm}{kid})"


def _read(token: bytes) -> _Unverified:
    import jwt

    try:
        whole = jwt.PyJWS().decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return _Unverified(None, None)
    return _Unverified(_object(json.dumps(whole["header"]).encode()), _object(whole["payload"]))


def _object(document: bytes) -> dict[str, Any] | None:
    """Decode a JSON object. Return None for other values, and for text with lone surrogates: it cannot be printed."""
    try:
        found = msgspec.json.decode(document)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _as_json(unverified: _Unverified, verdict: TokenVerdict, accepted: bool | None) -> dict[str, Any]:
    return {
        "accepted": accepted,
        "reason": verdict.reason,
        "message": verdict.message,
        "signed_by": verdict.key,
        "header": unverified.header,
        "claims": unverified.claims,
        "expires_at": _instant_ms((unverified.claims or {}).get("exp")),
        "may": _abilities(verdict.caller),
    }


def _as_record(unverified: _Unverified, verdict: TokenVerdict, accepted: bool | None) -> dict[str, Any]:
    refusal = "no" if verdict.message is None else f"no: {verdict.message} ({verdict.reason})"
    record: dict[str, Any] = {
        "accepted": {True: "yes", False: refusal, None: "unknown"}[accepted],
        "signed by": verdict.key or ("not checked" if accepted is None else "no key of this server"),
    }
    # Prefixed, so that a claim named `accepted` cannot be mistaken for the verdict.
    for kind, fields in (("header", unverified.header or {}), ("claim", unverified.claims or {})):
        for name, value in fields.items():
            record[f"{kind} {printable(name[:40])}"] = _format_claim(name, value)
    if verdict.caller is not None:
        record["may"] = "; ".join(_abilities(verdict.caller) or ["nothing: it has no scope"])
    return record


def _format_claim(name: str, value: Any) -> str:
    if name in ("iat", "nbf", "exp") and (at_ms := _instant_ms(value)) is not None:
        ahead_ms = at_ms - SystemClock().now_ms()
        distance = f"in {duration(ahead_ms)}" if ahead_ms > 0 else f"{duration(-ahead_ms)} ago"
        return f"{instant(at_ms)} ({distance})"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _instant_ms(value: object) -> int | None:
    """Return a NumericDate in milliseconds. Return None for any other value, and for years that cannot be shown."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _YEAR_9999_S:
        return None
    return int(value * 1_000)


def _abilities(caller: "Caller | None") -> list[str] | None:
    """Describe what an accepted token allows. Return None for a refused token."""
    if caller is None:
        return None
    where = "in every tenant" if caller.is_operator else f"in tenant {caller.tenant}"
    return [f"{ability} {where}" for scope, ability in _ABILITIES.items() if caller.has(scope)]
