"""Check the claims of a verified token, and return the caller that they identify."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.model.errors import InvalidName, Unauthenticated
from holdfast.model.names import parse_name
from holdfast.model.scopes import Scope
from holdfast.service.access import EVERY_TENANT, Caller

# The header that carries a token, and the scheme before the token.
AUTHORIZATION = b"authorization"
BEARER = b"bearer "

# How far the issuer's clock may be ahead of the server's. The expiry of a token gets no such leeway.
LEEWAY_MS = 10_000
# The year 9999. Larger values are milliseconds given as seconds, or an attempt to cause an overflow.
_LAST_SECOND = 253_402_300_799
MAX_SUBJECT_CHARS = 256
_SCOPES = {scope.value: scope for scope in Scope}


class IdentifiedCaller(NamedTuple):
    """A caller, and the instant in milliseconds since 1970 until which its token is valid."""

    caller: Caller
    expires_at: int


def refused(reason: str, message: str) -> Unauthenticated:
    """Return the error for a refused credential.

    `reason` is one word for logs and metrics. Neither it nor the message may show any part of a credential.
    """
    return Unauthenticated(message, reason=reason)


def identify(claims: Mapping[str, Any], *, now_ms: int, audience: str, issuer: str | None) -> IdentifiedCaller:
    """Return the caller that a token's claims identify. Raise `Unauthenticated` for a missing or invalid claim.

    `audience` must be one of the token's audiences. With `issuer`, the token must be from that issuer.
    """
    expires_at = _instant(claims, "exp")
    if expires_at is None:
        raise refused("claims", "the token has no exp claim; issue tokens that expire")
    if now_ms >= expires_at:
        raise refused("expired", "the token has expired; get a new one")
    for name in ("nbf", "iat"):
        begins_at = _instant(claims, name)
        if begins_at is not None and now_ms + LEEWAY_MS < begins_at:
            raise refused("not_yet_valid", f"the token is not valid yet: its {name} is ahead of the server's clock")
    _check_audience(claims.get("aud"), audience)
    if issuer is not None and claims.get("iss") != issuer:
        raise refused("issuer", "the token's issuer (iss) is not jwt_issuer")
    caller = Caller(tenant=_tenant(claims), scopes=_scopes(claims), subject=_subject(claims))
    return IdentifiedCaller(caller, expires_at)


def _instant(claims: Mapping[str, Any], name: str) -> int | None:
    """Return a NumericDate in milliseconds, or None if the claim is missing."""
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_second(value):
        raise refused("claims", f"the token's {name} claim is not a time; give seconds since 1970 as a number")
    return int(value * 1_000)


def _is_second(value: float) -> bool:
    # The comparison comes first, because an integer may be too large for `isfinite` to convert it to a float.
    return 0 <= value <= _LAST_SECOND and math.isfinite(value)


def _check_audience(given: object, audience: str) -> None:
    audiences = given if isinstance(given, list) else [given]
    if not any(isinstance(one, str) and one == audience for one in audiences):
        raise refused("audience", "the token is not for this server; its aud claim must be jwt_audience")


def _tenant(claims: Mapping[str, Any]) -> str:
    tenant = claims.get("tenant")
    if tenant == EVERY_TENANT:
        return EVERY_TENANT
    try:
        return parse_name("tenant", tenant)
    except InvalidName:
        raise refused("tenant", "the token's tenant claim is missing or not a name") from None


def _scopes(claims: Mapping[str, Any]) -> frozenset[Scope]:
    scope = claims.get("scope", "")
    if not isinstance(scope, str):
        raise refused("claims", "the token's scope claim is not text; give words separated by spaces")
    # The claim may also contain scopes of other services.
    return frozenset(_SCOPES[word] for word in scope.split(" ") if word in _SCOPES)


def _subject(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub", "")
    if not isinstance(subject, str) or len(subject) > MAX_SUBJECT_CHARS or not subject.isprintable():
        raise refused("claims", f"the token's sub claim is not 0-{MAX_SUBJECT_CHARS} printable characters")
    return subject
