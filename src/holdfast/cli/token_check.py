"""`holdfast token --check`: say what is in a token, and whether a server accepts it, in the server's own words."""

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from holdfast.cli.failures import REFUSED, Usage, printable
from holdfast.cli.show import Output, duration, echo_json, instant
from holdfast.cli.token import identity_of_key, read_private_key, start, verifying_identity
from holdfast.clock import SystemClock
from holdfast.model.errors import Unauthenticated
from holdfast.service.access import Scope

if TYPE_CHECKING:
    from holdfast.doors.identity import TokenIdentity
    from holdfast.doors.identity.keys import Key, KeySet
    from holdfast.server.settings import Settings
    from holdfast.service.access import Caller

_ABILITIES = {
    Scope.READ: "claim, settle and look at messages",
    Scope.WRITE: "enqueue",
    Scope.ADMIN: "manage queues and policies",
}


class Verdict(NamedTuple):
    caller: "Caller | None" = None
    # The key that signed the token, also where its claims are refused.
    key: str | None = None
    reason: str | None = None
    message: str | None = None


class _Unverified(NamedTuple):
    """What a token says of itself, which may be a lie; None for what cannot be read."""

    header: dict[str, Any] | None
    claims: dict[str, Any] | None


def explain(settings: "Settings", key: bytes | None, token: bytes, *, json: bool) -> None:
    """Print it. Exit with 4 if a server with these settings would refuse the token, with 2 if that cannot be known."""
    said = _read(token)
    has_keys = key is not None or settings.jwt_secret is not None or settings.jwt_keys is not None
    verdict = asyncio.run(_judge(settings, key, token)) if has_keys else Verdict()
    accepted = None if not has_keys else verdict.caller is not None
    if json:
        echo_json(_as_json(said, verdict, accepted))
    else:
        Output().record(_as_record(said, verdict, accepted))
    if accepted is None:
        raise Usage("the signature was not checked: give jwt_secret, jwt_secret_file, jwt_keys or --key FILE")
    if not accepted:
        raise typer.Exit(REFUSED)


async def _judge(settings: "Settings", key: bytes | None, token: bytes) -> Verdict:
    identity = verifying_identity(settings)
    name = "jwt_keys" if settings.jwt_secret is None else "jwt_secret"
    if identity is not None:
        await start(identity, settings)
    try:
        if key is not None:
            signing = read_private_key(key, identity)
            if identity is None:
                identity, name = identity_of_key(signing, settings), "--key"
        assert identity is not None, "there are keys"
        return await _verdict(identity, name, token)
    finally:
        if identity is not None:
            await identity.close()


async def _verdict(identity: "TokenIdentity", name: str, token: bytes) -> Verdict:
    signed_by: str | None = None
    try:
        signed = await identity.verify_signature(token)
        signed_by = _describe(signed.key, signed.keys, name)
        return Verdict(identity.identify(signed.payload).caller, signed_by)
    except Unauthenticated as error:
        return Verdict(None, signed_by, str(error.facts.get("reason", error.code)), error.message)


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
        header = dict(whole["header"])
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return _Unverified(None, None)
    try:
        claims = msgspec.json.decode(whole["payload"])
    except ValueError:
        claims = None
    return _Unverified(header, claims if isinstance(claims, dict) else None)


def _as_json(said: _Unverified, verdict: Verdict, accepted: bool | None) -> dict[str, Any]:
    return {
        "accepted": accepted,
        "reason": verdict.reason,
        "message": verdict.message,
        "signed_by": verdict.key,
        "header": said.header,
        "claims": said.claims,
        "expires_at": _instant_ms((said.claims or {}).get("exp")),
        "may": _abilities(verdict.caller),
    }


def _as_record(said: _Unverified, verdict: Verdict, accepted: bool | None) -> dict[str, Any]:
    refusal = "no" if verdict.message is None else f"no: {verdict.message} ({verdict.reason})"
    record: dict[str, Any] = {
        "accepted": {True: "yes", False: refusal, None: "unknown"}[accepted],
        "signed by": verdict.key or ("not checked" if accepted is None else "no key of this server"),
    }
    # Each under a name of its own: a claim `accepted` must not pass for the verdict.
    for kind, fields in (("header", said.header or {}), ("claim", said.claims or {})):
        for name, value in fields.items():
            record[f"{kind} {printable(name[:40])}"] = _shown(name, value)
    if verdict.caller is not None:
        record["may"] = "; ".join(_abilities(verdict.caller) or ["nothing: it has no scope"])
    return record


def _shown(name: str, value: Any) -> str:
    if name in ("iat", "nbf", "exp") and (at_ms := _instant_ms(value)) is not None:
        ahead_ms = at_ms - SystemClock().now_ms()
        return f"{instant(at_ms)} ({f'in {duration(ahead_ms)}' if ahead_ms > 0 else f'{duration(-ahead_ms)} ago'})"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _instant_ms(value: object) -> int | None:
    """Return a NumericDate in milliseconds; None for anything that is not one, up to the year 9999."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 253_402_300_800:
        return None
    return int(value * 1_000)


def _abilities(caller: "Caller | None") -> list[str] | None:
    """What an accepted token allows, in sentences; None for one that is refused."""
    if caller is None:
        return None
    where = "in every tenant" if caller.is_operator else f"in tenant {caller.tenant}"
    return [f"{ability} {where}" for scope, ability in _ABILITIES.items() if caller.has(scope)]
