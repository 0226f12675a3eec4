"""`holdfast token`: create a token for callers of a server, or check one."""

import asyncio
import math
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import Usage
from holdfast.cli.output import echo_json
from holdfast.cli.server.serve import setting_option
from holdfast.cli.session import duration
from holdfast.clock import SystemClock
from holdfast.model.errors import InvalidArgument, Unauthenticated, Unavailable
from holdfast.model.extras import require_extra
from holdfast.model.names import parse_name
from holdfast.model.parsing.durations import parse_duration_ms
from holdfast.model.scopes import Scope
from holdfast.server.settings import SETTINGS
from holdfast.service.access import EVERY_TENANT

if TYPE_CHECKING:
    from holdfast.doors.identity.signing import SigningKey
    from holdfast.doors.identity.tokens import TokenIdentity
    from holdfast.server.settings import Settings

_DEFAULT_SCOPE = "read write"
_DEFAULT_TTL = "1h"
# Single tokens cannot be revoked, so a longer life is refused.
_MAX_TTL_MS = 3_650 * 86_400_000
# Larger than any token or key file in use.
_MAX_INPUT_BYTES = 64 * 1_024


def token(
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", "-T", metavar="TENANT", help="Tenant of the caller; `*` for an operator of all tenants."
        ),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="SCOPES",
            help="Any of read (claim, settle, inspect), write (enqueue) and admin (these, and queues and policies), "
            f"separated by spaces. [default: {_DEFAULT_SCOPE}]",
        ),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help=f"How long the token is valid. [default: {_DEFAULT_TTL}]")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Name of the program or person within the tenant.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Sign with this private key (PEM or JWK), for a server with `jwt_keys`."),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Check this token instead of creating one; `-` reads it from stdin."),
    ] = None,
    jwt_secret: Annotated[str | None, setting_option(SETTINGS["jwt_secret"])] = None,
    jwt_secret_file: Annotated[str | None, setting_option(SETTINGS["jwt_secret_file"])] = None,
    jwt_keys: Annotated[str | None, setting_option(SETTINGS["jwt_keys"])] = None,
    jwt_issuer: Annotated[str | None, setting_option(SETTINGS["jwt_issuer"])] = None,
    jwt_audience: Annotated[str | None, setting_option(SETTINGS["jwt_audience"])] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read the server's settings from this TOML file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: the token, its claims and its expiry.")] = False,
) -> None:
    """Create a token for callers of a server, or check one.

    The token is signed with `jwt_secret`, or with a private key (`--key`) whose public key is in `jwt_keys`. Settings
    are read in the same way as by `holdfast serve`. Exits with 4 if a server would refuse the token.

    ```console
    HOLDFAST_TOKEN=$(holdfast token --tenant acme --scope "read write" --ttl 12h --subject ci)
    ```
    """
    require_extra("server", "holdfast token")
    flags = {
        "jwt_secret": jwt_secret,
        "jwt_secret_file": jwt_secret_file,
        "jwt_keys": jwt_keys,
        "jwt_issuer": jwt_issuer,
        "jwt_audience": jwt_audience,
    }
    settings = _load({name: value for name, value in flags.items() if value is not None}, config)
    if key is not None and settings.jwt_secret is not None:
        raise Usage(
            "--key and jwt_secret exclude each other, because a server accepts one kind of token: give one of them"
        )
    if check is not None:
        if not (tenant is scope is ttl is subject is None):
            raise Usage("--check takes a finished token: omit --tenant, --scope, --ttl and --subject")
        from holdfast.cli.server.token_check import check_token

        check_token(settings, _read_key(key), _read_token(check), as_json=json)
        return
    if tenant is None:
        raise Usage("give --tenant, or check a token with --check")
    claims = _claims(
        settings, tenant, _DEFAULT_SCOPE if scope is None else scope, _DEFAULT_TTL if ttl is None else ttl, subject
    )
    signed = asyncio.run(_sign(settings, _read_key(key), claims))
    if json:
        echo_json({"token": signed, "claims": claims, "expires_at": claims["exp"] * 1_000})
    else:
        typer.echo(signed)


def _load(flags: dict[str, str], config: str | None) -> "Settings":
    from holdfast.server.sources import load_settings

    try:
        return load_settings(flags, os.environ, config=config).settings
    except InvalidArgument as error:
        raise Usage(error.message) from None


def _read_key(path: str | None) -> bytes | None:
    """Return the contents of the key file. An OSError names it."""
    if path is None:
        return None
    with Path(path).open("rb") as file:
        return file.read(_MAX_INPUT_BYTES)


def _read_token(given: str) -> bytes:
    text = sys.stdin.read(_MAX_INPUT_BYTES) if given == "-" else given
    text = text.strip()
    if text[:7].lower() == "bearer ":  # copied from an Authorization header
        text = text[7:].strip()
    if not text:
        raise Usage("the token to check is empty: give --check TOKEN, or pipe it into --check -")
    return text.encode(errors="surrogateescape")


def _claims(settings: "Settings", tenant: str, scope: str, ttl: str, subject: str | None) -> dict[str, Any]:
    if tenant != EVERY_TENANT:
        parse_name("tenant", tenant)
    words = scope.replace(",", " ").split()
    if not words or not {*words} <= {*Scope}:
        raise InvalidArgument(f"scope {scope[:80]!r} is not accepted: give any of read, write and admin", field="scope")
    ttl_ms = parse_duration_ms("ttl", duration(ttl))
    if not 1_000 <= ttl_ms <= _MAX_TTL_MS:
        raise InvalidArgument(f"ttl {ttl!r} is not accepted: give 1s to 3650d", field="ttl")
    now_ms = SystemClock().now_ms()
    claims: dict[str, Any] = {
        "tenant": tenant,
        "scope": " ".join(dict.fromkeys(words)),
        "aud": settings.jwt_audience,
        "iat": now_ms // 1_000,
        "exp": math.ceil((now_ms + ttl_ms) / 1_000),
    }
    if subject is not None:
        claims["sub"] = subject
    if settings.jwt_issuer is not None:
        claims["iss"] = settings.jwt_issuer
    return claims


async def _sign(settings: "Settings", key: bytes | None, claims: dict[str, Any]) -> str:
    """Sign the claims, and check that a server with the same settings accepts them."""
    async with verifying_identity(settings) as identity:
        signing = _signing_key(settings, key, identity)
        token = signing.sign(claims)
        verifier = identity or identity_of_key(signing, settings)
        try:
            verifier.identify((await verifier.verify_signature(token.encode())).payload)
        except Unauthenticated as error:
            raise InvalidArgument(f"a server would refuse the token: {error.message}") from None
        return token


def _signing_key(settings: "Settings", key: bytes | None, identity: "TokenIdentity | None") -> "SigningKey":
    from holdfast.doors.identity.signing import secret_signing_key

    if key is not None:
        return read_private_key(key, identity)
    if settings.jwt_secret is not None:
        return secret_signing_key(settings.jwt_secret.reveal())
    if settings.jwt_keys is not None:
        raise Usage("jwt_keys holds public keys: give the private key with --key FILE")
    raise Usage("no key to sign with: give jwt_secret, jwt_secret_file or --key FILE")


def read_private_key(key: bytes, identity: "TokenIdentity | None") -> "SigningKey":
    """Read a private key in PEM or JWK. Raise InvalidArgument if a server with these keys would refuse its tokens."""
    from holdfast.doors.identity.keys import UnusableKeys
    from holdfast.doors.identity.signing import private_signing_key

    try:
        return private_signing_key(key, None if identity is None else identity.keys)
    except UnusableKeys as error:
        raise InvalidArgument(f"--key: {error}", field="key") from None


@asynccontextmanager
async def verifying_identity(settings: "Settings") -> AsyncIterator["TokenIdentity | None"]:
    """Open the token verification of a server with these settings; None if it has neither a secret nor keys."""
    from holdfast.doors.identity.compose import make_token_identity

    if settings.jwt_secret is None and settings.jwt_keys is None:
        yield None
        return
    secret = None if settings.jwt_secret is None else settings.jwt_secret.reveal()
    try:
        identity = make_token_identity(
            SystemClock(), secret, settings.jwt_keys, settings.jwt_issuer, settings.jwt_audience
        )
    except InvalidArgument as error:
        raise Usage(error.message) from None
    assert identity is not None, "there is a secret, or there are keys"
    try:
        await identity.start()
        if not identity.keys.all:
            raise Unavailable(f"jwt_keys: no keys could be fetched from {settings.jwt_keys}; try again later")
        yield identity
    finally:
        await identity.close()


def identity_of_key(signing: "SigningKey", settings: "Settings") -> "TokenIdentity":
    """Return the token verification of a server that has the public part of this key."""
    from holdfast.doors.identity.keys import KeySet
    from holdfast.doors.identity.sources import FixedKeys
    from holdfast.doors.identity.tokens import TokenIdentity

    source = FixedKeys(KeySet([signing.verifier]))
    return TokenIdentity(source, SystemClock(), audience=settings.jwt_audience, issuer=settings.jwt_issuer)
