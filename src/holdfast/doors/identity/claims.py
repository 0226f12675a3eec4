"""What a verified token says: who calls, and until when."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.model.errors import InvalidName, Unauthenticated
from holdfast.model.names import parse_name
from holdfast.model.scopes import Scope
from holdfast.service.access import EVERY_TENANT, Caller

# The header that a token comes in, and the scheme before it.
AUTHORIZATION = b"authorization"
BEARER = b"bearer "

# How far an issuer's clock may be ahead of ours. A token's end is its end: it gets no such grace.
LEEWAY_MS = 10_000
# The year 9999. What lies beyond is milliseconds given as seconds, or an attempt to overflow something.
_LAST_SECOND = 253_402_300_799
MAX_SUBJECT_CHARS = 256
_SCOPES = {scope.value: scope for scope in Scope}


class IdentifiedCaller(NamedTuple):
    caller: Caller
    expires_at: int


def refused(reason: str, message: str) -> Unauthenticated:
    """`reason` is one word for logs and metrics; neither it nor the message shows any part of a credential."""
    return Unauthenticated(message, reason=reason)


def identify(claims: Mapping[str, Any], *, now_ms: int, audience: str, issuer: str | None) -> IdentifiedCaller:
    expires_at = _instant(claims, "exp")
    if expires_at is None:
        raise refused("claims", "the token has no exp claim: tokens must end")
    if now_ms >= expires_at:
        raise refused("expired", "the token has expired: get a new one")
    for name in ("nbf", "iat"):
        begins_at = _instant(claims, name)
        if begins_at is not None and now_ms + LEEWAY_MS < begins_at:
            raise refused("not_yet_valid", f"the token is not valid yet: its {name} lies ahead of the server's clock")
    _check_audience(claims.get("aud"), audience)
    if issuer is not None and claims.get("iss") != issuer:
        raise refused("issuer", "the token is from another issuer than jwt_issuer")
    caller = Caller(tenant=_tenant(claims), scopes=_scopes(claims), subject=_subject(claims))
    return IdentifiedCaller(caller, expires_at)


def _instant(claims: Mapping[str, Any], name: str) -> int | None:
    """A NumericDate in milliseconds; None where the claim is missing."""
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_second(value):
        raise refused("claims", f"the token's {name} claim is no time: give seconds since 1970 as a number")
    return int(value * 1_000)


def _is_second(value: float) -> bool:
    # Compared first: an integer may be too large to be a float.
    return 0 <= value <= _LAST_SECOND and math.isfinite(value)


def _check_audience(given: object, audience: str) -> None:
    audiences = given if isinstance(given, list) else [given]
    if not any(isinstance(one, str) and one == audience for one in audiences):
        raise refused("audience", "the token is not for this server: its aud claim must be jwt_audience")


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
        raise refused("claims", "the token's scope claim is not text: give words with spaces between them")
    # Words of other services may stand beside ours.
    return frozenset(_SCOPES[word] for word in scope.split(" ") if word in _SCOPES)


def _subject(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub", "")
    if not isinstance(subject, str) or len(subject) > MAX_SUBJECT_CHARS or not subject.isprintable():
        raise refused("claims", f"the token's sub claim is not 0-{MAX_SUBJECT_CHARS} printable characters")
    return subject
