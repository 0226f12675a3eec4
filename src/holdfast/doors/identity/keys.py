"""Parse the keys that tokens are verified with. Each key has one algorithm, whatever algorithm a token names."""

import base64
import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import InvalidKeyError

from holdfast.model.errors import InvalidArgument

PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

SYMMETRIC = frozenset({"HS256"})
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_CURVE = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ASYMMETRIC = _RSA | frozenset(_BY_CURVE.values()) | {"EdDSA"}

# A shorter secret would be weaker than HS256 itself (RFC 7518, 3.2).
MIN_SECRET_BYTES = 32
_RSA_BITS = range(2_048, 8_193)
# Published sets hold two to ten keys. A token without a kid may be tried against each of them.
MAX_KEYS = 64
MAX_KID_CHARS = 256

_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,64})-----.*?-----END \1-----", re.DOTALL)


class UnusableKeys(Exception):
    """A document is not a usable set of keys. The message says why, without quoting the document."""


class Key:
    """One key and its algorithm. Its `repr` shows no key material, so that a secret cannot get into a log."""

    __slots__ = ("algorithm", "kid", "material")

    def __init__(self, algorithm: str, material: PublicKey | bytes, kid: str | None = None) -> None:
        self.algorithm = algorithm
        self.material = material
        self.kid = kid

    def __repr__(self) -> str:
        return f"<key for {self.algorithm}>"


class KeySet:
    """An immutable set of keys. Changed keys are another object, by which a cache notices the change."""

    __slots__ = ("_by_kid", "_unnamed", "accepted", "all")

    def __init__(self, keys: Iterable[Key], accepted: frozenset[str] = ASYMMETRIC) -> None:
        self.all = tuple(keys)
        # A token with another algorithm is refused without trying the keys.
        self.accepted = accepted
        self._unnamed = tuple(key for key in self.all if key.kid is None)
        self._by_kid: dict[str, tuple[Key, ...]] = {}
        for key in self.all:
            if key.kid is not None:
                self._by_kid[key.kid] = (*self._by_kid.get(key.kid, ()), key)

    def named(self, kid: str | None) -> tuple[Key, ...]:
        """Return the keys that a token may have been signed with.

        These are the keys with its kid or, if there are none, the keys without a kid; for a token without a kid, all.
        """
        if kid is None:
            return self.all
        return self._by_kid.get(kid) or self._unnamed

    def has(self, kid: str | None) -> bool:
        """Return whether a key has exactly this kid, so that fetching the keys again could not help."""
        return kid in self._by_kid


def secret_keys(secret: str) -> KeySet:
    """Return the key set of one shared secret. Raise `InvalidArgument` if it is too short or is public text."""
    material = secret.encode()
    if len(material) < MIN_SECRET_BYTES:
        raise InvalidArgument(
            f"jwt_secret has {len(material)} bytes; use at least {MIN_SECRET_BYTES} random bytes", setting="jwt_secret"
        )
    if _is_public(material):
        raise InvalidArgument(
            "jwt_secret is the text of a key or a certificate, not a secret; give public keys as jwt_keys",
            setting="jwt_secret",
        )
    return KeySet([Key("HS256", material)], SYMMETRIC)


def _is_public(material: bytes) -> bool:
    """Return whether a secret is the text of a key: PEM, JWK, SSH or DER.

    DER is also recognised as plain base64, as some consoles show a public key.
    """
    text = material.strip()
    if b"-----BEGIN" in text or b'"kty"' in text:
        return True
    readings = [text]
    with contextlib.suppress(ValueError):
        readings.append(base64.b64decode(b"".join(text.split()), validate=True))
    try:
        for reading in readings:
            HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(reading)
    except InvalidKeyError:
        return True
    return False


def parse_keys(document: bytes) -> KeySet:
    """Return the keys of a document: PEM public keys and certificates, or a JWKS. Raise `UnusableKeys` for another."""
    if b"-----BEGIN" in document:
        return KeySet(_pem_keys(document))
    return parse_jwks(document)


def _pem_keys(document: bytes) -> list[Key]:
    """Return the keys of PEM blocks. Of a certificate only its key is used; its expiry is the issuer's concern."""
    keys = []
    for block in _PEM.finditer(document):
        label = block[1]
        if b"PRIVATE" in label:
            raise UnusableKeys("it contains a private key; give the public key and keep the private key elsewhere")
        try:
            if label == b"CERTIFICATE":
                public: Any = x509.load_pem_x509_certificate(block[0]).public_key()
            elif label in (b"PUBLIC KEY", b"RSA PUBLIC KEY"):
                public = load_pem_public_key(block[0])
            else:
                continue
        except Exception:  # the parsers raise many kinds of error for bytes that are not a key
            raise UnusableKeys("it contains a PEM block that cannot be read") from None
        keys.append(key_of(public, None, None))
    if not keys:
        raise UnusableKeys("it contains no public key or certificate")
    return _bounded(keys)


def parse_jwks(document: bytes) -> KeySet:
    """Return the keys of a JWKS that verify signatures. Raise `UnusableKeys` if the document is not a JWKS.

    Other keys are ignored (RFC 7517, 5), above all private and symmetric ones.
    """
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError):
        raise UnusableKeys("it is neither PEM nor JSON") from None
    if isinstance(parsed, dict) and "kty" in parsed:
        parsed = {"keys": [parsed]}
    if not isinstance(parsed, dict) or not isinstance(parsed.get("keys"), list):
        raise UnusableKeys('it is not a JWKS: it has no list "keys"')
    entries = _bounded(parsed["keys"])
    return KeySet(key for entry in entries if isinstance(entry, dict) and (key := _jwk(entry)) is not None)


def _jwk(entry: Mapping[str, Any]) -> Key | None:
    kid, algorithm = entry.get("kid"), entry.get("alg")
    operations = entry.get("key_ops", ["verify"])
    if kid is not None and not (isinstance(kid, str) and len(kid) <= MAX_KID_CHARS):
        return None
    # A published private key proves nothing about a token's signer.
    if "d" in entry or entry.get("use", "sig") != "sig" or "verify" not in operations:
        return None
    try:
        match entry.get("kty"):
            case "RSA":
                public: Any = RSAAlgorithm.from_jwk(dict(entry))
            case "EC":
                public = ECAlgorithm.from_jwk(dict(entry))
            case "OKP":
                public = OKPAlgorithm.from_jwk(dict(entry))
            case _:
                return None
        return key_of(public, kid, algorithm)
    except Exception:  # one unreadable key must not make the others unusable
        return None


def key_of(public: Any, kid: str | None, algorithm: object) -> Key:
    """Return a public key with its algorithm: `algorithm` if it is given, otherwise the usual one of the key's kind.

    Raise `UnusableKeys` for an unsupported kind, size or curve, and for an algorithm that does not fit the key.
    """
    match public:
        case RSAPublicKey():
            if public.key_size not in _RSA_BITS:
                raise UnusableKeys(f"an RSA key has {public.key_size} bits; use {_RSA_BITS[0]} to {_RSA_BITS[-1]}")
            fitting, usual = _RSA, "RS256"
        case EllipticCurvePublicKey():
            usual = _BY_CURVE.get(public.curve.name, "")
            fitting = frozenset({usual})
        case Ed25519PublicKey() | Ed448PublicKey():
            # RFC 9864 has an algorithm name for each curve, but tokens still use EdDSA.
            fitting, usual = frozenset({"EdDSA"}), "EdDSA"
            algorithm = "EdDSA" if algorithm in ("Ed25519", "Ed448") else algorithm
        case _:
            raise UnusableKeys(
                "a key in it is not of a kind that signs tokens; use RSA, P-256, P-384, P-521 or Ed25519"
            )
    if not usual:
        raise UnusableKeys("a key in it is on another curve than P-256, P-384 and P-521")
    if algorithm is not None and algorithm not in fitting:
        raise UnusableKeys("a key in it does not fit the algorithm that it names")
    return Key(usual if algorithm is None else str(algorithm), public, kid)


def _bounded(keys: list[Any]) -> list[Any]:
    if len(keys) > MAX_KEYS:
        raise UnusableKeys(f"it has {len(keys)} keys; the maximum is {MAX_KEYS}")
    return keys
