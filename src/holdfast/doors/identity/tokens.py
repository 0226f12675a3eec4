"""Identify callers by bearer token (JWT)."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import jwt

from holdfast.clock import Clock
from holdfast.doors.identity.certificates import PeerCertificate
from holdfast.doors.identity.claims import AUTHORIZATION, BEARER, IdentifiedCaller, identify, refused
from holdfast.doors.identity.keys import MAX_KID_CHARS, Key, KeySet
from holdfast.doors.identity.sources import KeySource
from holdfast.model.errors import Unauthenticated
from holdfast.service.access import Caller

# Larger than any token in use. Verified tokens are cached, so the product of the two limits the cache's memory.
MAX_TOKEN_BYTES = 8 * 1_024
MAX_REMEMBERED = 4_096


class Signed(NamedTuple):
    """The undecoded claims of a token, and the key that verified its signature."""

    payload: bytes
    key: Key
    # The key set that was current when the token was verified.
    keys: KeySet


class TokenIdentity:
    """An identity that verifies each token once, and caches its caller until the token expires or the keys change."""

    def __init__(self, keys: KeySource, clock: Clock, *, audience: str, issuer: str | None) -> None:
        self._source = keys
        self._clock = clock
        self._audience = audience
        self._issuer = issuer
        self._jws = jwt.PyJWS(algorithms=sorted(keys.keys.accepted))
        # Keys are whole Authorization headers. Python's hash has a random key per process, so the time of a look-up
        # reveals nothing about the cached tokens.
        self._remembered: OrderedDict[bytes, IdentifiedCaller] = OrderedDict()
        self._remembered_for: KeySet = keys.keys

    @property
    def keys(self) -> KeySet:
        """Return the current key set."""
        return self._source.keys

    async def start(self) -> None:
        """Load the keys."""
        await self._source.start()

    async def close(self) -> None:
        """Stop loading keys."""
        await self._source.close()

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller:
        """Return the caller that the token identifies. Raise `Unauthenticated` if it is missing or invalid."""
        # The cache is keyed by the usual spelling of the header, so a known token needs no parsing.
        given = headers.get(AUTHORIZATION, b"")
        now = self._clock.now_ms()
        if now >= self._source.check_at:
            await self._source.check()
            now = self._clock.now_ms()
        if self._source.keys is not self._remembered_for:
            self._remembered.clear()
            self._remembered_for = self._source.keys
        known = self._remembered.get(given)
        if known is None:
            given = b"Bearer " + bearer_token(headers)
            known = self._remembered.get(given)
            if known is None:
                return await self._identify_new(given[7:])
        if now >= known.expires_at:
            del self._remembered[given]
            raise refused("expired", "the token has expired; get a new one")
        self._remembered.move_to_end(given)
        return known.caller

    async def _identify_new(self, token: bytes) -> Caller:
        signed = await self.verify_signature(token)
        identified = self.identify(signed.payload)
        # If the keys changed meanwhile, the cache was cleared or will be: a token verified by old keys must not enter.
        if signed.keys is self._source.keys is self._remembered_for:
            self._remember(token, identified)
        return identified.caller

    async def verify_signature(self, token: bytes) -> Signed:
        """Return the claims if one of the keys signed the token; otherwise raise `Unauthenticated`.

        The claims themselves are not checked. A token that names an unknown key makes the source look for new keys.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise refused("malformed", f"the token is larger than {MAX_TOKEN_BYTES} bytes")
        kid, algorithm = self._read_header(token)
        keys = self._source.keys
        signed = self._signed(token, keys, kid, algorithm)
        if signed is None and not keys.has(kid):
            await self._source.renew()
            if self._source.keys is not keys:
                keys = self._source.keys
                signed = self._signed(token, keys, kid, algorithm)
        if signed is None:
            raise _not_ours(keys.named(kid), algorithm)
        return signed

    def identify(self, payload: bytes) -> IdentifiedCaller:
        """Return the caller that the claims identify, and their expiry. Raise `Unauthenticated` for invalid claims."""
        try:
            claims = json.loads(payload)
        except (ValueError, RecursionError):
            claims = None
        if not isinstance(claims, dict):
            raise refused("malformed", "the token's claims are not a JSON object")
        return identify(claims, now_ms=self._clock.now_ms(), audience=self._audience, issuer=self._issuer)

    def _read_header(self, token: bytes) -> tuple[str | None, str]:
        """Return the key id and the algorithm that a token names. `jku`, `x5u`, `jwk` and `x5c` are ignored."""
        try:
            header = self._jws.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise refused("malformed", "the token is not a JWT with a readable header") from None
        if "crit" in header or "b64" in header:
            raise refused("malformed", "the token requires an extension (crit) that this server does not support")
        kid, algorithm = header.get("kid"), header.get("alg")
        if kid is not None and not (isinstance(kid, str) and len(kid) <= MAX_KID_CHARS):
            raise refused("malformed", f"the token's kid is not text of at most {MAX_KID_CHARS} characters")
        # Checked before any key is looked up, so that a token with a wrong algorithm never causes a fetch.
        if not isinstance(algorithm, str) or algorithm not in self._source.keys.accepted:
            raise refused("algorithm", "this server does not accept the token's algorithm")
        return kid, algorithm

    def _signed(self, token: bytes, keys: KeySet, kid: str | None, algorithm: str) -> Signed | None:
        """Return the claims if one of `keys` signed the token, otherwise None."""
        for key in keys.named(kid):
            # The key decides which algorithm verifies the token. The token's header only has to agree.
            if key.algorithm == algorithm:
                payload = self._verified(token, key)
                if payload is not None:
                    return Signed(payload, key, keys)
        return None

    def _verified(self, token: bytes, key: Key) -> bytes | None:
        try:
            signed = self._jws.decode(
                token, key.material, algorithms=[key.algorithm], options={"enforce_minimum_key_length": True}
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return None
        return signed if isinstance(signed, bytes) else None

    def _remember(self, token: bytes, identified: IdentifiedCaller) -> None:
        self._remembered[b"Bearer " + token] = identified
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)


def _not_ours(named: tuple[Key, ...], algorithm: str) -> Unauthenticated:
    if not named:
        return refused("unknown_key", "the token names a key (kid) that this server does not have")
    if all(key.algorithm != algorithm for key in named):
        return refused("algorithm", "the token's algorithm is not that of its key; a JWK may name its algorithm in alg")
    return refused("signature", "the token was not signed by a key of this server")


def bearer_token(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the bearer token of a request. Raise `Unauthenticated` if it is missing or malformed."""
    given = headers.get(AUTHORIZATION)
    if given is None:
        raise refused("missing", "authentication is required; send the header Authorization: Bearer with a token")
    if given[:7].lower() != BEARER:
        raise refused("malformed", "the Authorization header is malformed; send Bearer, a space, and a token")
    return given[7:].strip(b" ")
