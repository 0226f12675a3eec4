"""Callers by bearer token (JWT)."""

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

# Larger than any token in use; what is verified is remembered, so this times the next is memory.
MAX_TOKEN_BYTES = 8 * 1_024
MAX_REMEMBERED = 4_096


class Signed(NamedTuple):
    """The claims of a token, still to be read, and the key that vouches for them."""

    payload: bytes
    key: Key
    # The keys in force when it was verified.
    keys: KeySet


class TokenIdentity:
    """Verifies each token once, and remembers it until it ends or the keys change."""

    def __init__(self, keys: KeySource, clock: Clock, *, audience: str, issuer: str | None) -> None:
        self._source = keys
        self._clock = clock
        self._audience = audience
        self._issuer = issuer
        self._jws = jwt.PyJWS(algorithms=sorted(keys.keys.accepted))
        # By the header of a token. Found by hash, keyed at random per process: how long a look-up takes tells nothing
        # of the tokens here.
        self._remembered: OrderedDict[bytes, IdentifiedCaller] = OrderedDict()
        self._remembered_for: KeySet = keys.keys

    @property
    def keys(self) -> KeySet:
        """The keys in force."""
        return self._source.keys

    async def start(self) -> None:
        await self._source.start()

    async def close(self) -> None:
        await self._source.close()

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Caller:
        # As it came, which is the spelling that is remembered: a known token is not even taken out of its header.
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
            raise refused("expired", "the token has expired: get a new one")
        self._remembered.move_to_end(given)
        return known.caller

    async def _identify_new(self, token: bytes) -> Caller:
        signed = await self.verify_signature(token)
        identified = self.identify(signed.payload)
        # Keys that changed meanwhile have cleared the memory, or will: nothing of the old ones may enter it.
        if signed.keys is self._source.keys is self._remembered_for:
            self._remember(token, identified)
        return identified.caller

    async def verify_signature(self, token: bytes) -> Signed:
        """Return the claims if one of the keys signed them, else raise `Unauthenticated`. Does not check the claims."""
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
        """Return who the claims are for and until when, or raise `Unauthenticated` if one of them is refused."""
        try:
            claims = json.loads(payload)
        except (ValueError, RecursionError):
            claims = None
        if not isinstance(claims, dict):
            raise refused("malformed", "the token's claims are not a JSON object")
        return identify(claims, now_ms=self._clock.now_ms(), audience=self._audience, issuer=self._issuer)

    def _read_header(self, token: bytes) -> tuple[str | None, str]:
        """The key and the algorithm a token claims. `jku`, `x5u`, `jwk` and `x5c` are not so much as looked at."""
        try:
            header = self._jws.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise refused("malformed", "this is not a JWT whose header can be read") from None
        if "crit" in header or "b64" in header:
            raise refused("malformed", "the token asks for an extension (crit) that this server does not have")
        kid, algorithm = header.get("kid"), header.get("alg")
        if kid is not None and not (isinstance(kid, str) and len(kid) <= MAX_KID_CHARS):
            raise refused("malformed", f"the token's kid is not text of at most {MAX_KID_CHARS} characters")
        # Before any key is looked for, so that no token of the wrong kind causes a fetch.
        if not isinstance(algorithm, str) or algorithm not in self._source.keys.accepted:
            raise refused("algorithm", "the token's algorithm is none that this server accepts")
        return kid, algorithm

    def _signed(self, token: bytes, keys: KeySet, kid: str | None, algorithm: str) -> Signed | None:
        """Return what one of our keys signed; None if none of them did."""
        for key in keys.named(kid):
            # The key decides which algorithm verifies; the token's word only has to agree with it.
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
        return refused("algorithm", "the token's algorithm is not the one of its key: a JWK may say which in alg")
    return refused("signature", "the token's signature is not by a key of this server")


def bearer_token(headers: Mapping[bytes, bytes]) -> bytes:
    given = headers.get(AUTHORIZATION)
    if given is None:
        raise refused("missing", "say who you are: send the header Authorization: Bearer with a token")
    if given[:7].lower() != BEARER:
        raise refused("malformed", "the Authorization header is not of the form: Bearer, a space, and a token")
    return given[7:].strip(b" ")
