"""Keys that tokens are verified with. Each has one algorithm, which no token can talk it out of."""

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

# HS256's own strength: a shorter secret is the weakest part (RFC 7518, 3.2).
MIN_SECRET_BYTES = 32
_RSA_BITS = range(2_048, 8_193)
# Published sets hold two to ten. A token without a kid may be tried against each of them.
MAX_KEYS = 64
MAX_KID_CHARS = 256

_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,64})-----.*?-----END \1-----", re.DOTALL)


class UnusableKeys(Exception):
    """A document that is no set of keys; its text says why and shows nothing of the document."""


class Key:
    """One key and its algorithm. A class without fields to show: a secret must not get into a log by `repr`."""

    __slots__ = ("algorithm", "kid", "material")

    def __init__(self, algorithm: str, material: PublicKey | bytes, kid: str | None = None) -> None:
        self.algorithm = algorithm
        self.material = material
        self.kid = kid

    def __repr__(self) -> str:
        return f"<key for {self.algorithm}>"


class KeySet:
    """The keys in force. Another set is another object, which is how a cache sees that keys changed."""

    __slots__ = ("_by_kid", "_unnamed", "accepted", "all")

    def __init__(self, keys: Iterable[Key], accepted: frozenset[str] = ASYMMETRIC) -> None:
        self.all = tuple(keys)
        # Algorithms of a key of this kind: what is outside is refused without a look at the keys.
        self.accepted = accepted
        self._unnamed = tuple(key for key in self.all if key.kid is None)
        self._by_kid: dict[str, tuple[Key, ...]] = {}
        for key in self.all:
            if key.kid is not None:
                self._by_kid[key.kid] = (*self._by_kid.get(key.kid, ()), key)

    def named(self, kid: str | None) -> tuple[Key, ...]:
        """The keys a token may mean: by its kid, else those that have none; without a kid, any."""
        if kid is None:
            return self.all
        return self._by_kid.get(kid) or self._unnamed

    def has(self, kid: str | None) -> bool:
        """Whether the token's key is here for certain, so that another set could say nothing new of it."""
        return kid in self._by_kid


def secret_keys(secret: str) -> KeySet:
    """The one key that is a shared secret. What was published, or can be guessed, is none."""
    material = secret.encode()
    if len(material) < MIN_SECRET_BYTES:
        raise InvalidArgument(
            f"jwt_secret has {len(material)} bytes: use at least {MIN_SECRET_BYTES} random ones", setting="jwt_secret"
        )
    if _is_public(material):
        raise InvalidArgument(
            "jwt_secret is the text of a key or a certificate, not a secret: give public keys as jwt_keys",
            setting="jwt_secret",
        )
    return KeySet([Key("HS256", material)], SYMMETRIC)


def _is_public(material: bytes) -> bool:
    """PEM, JWK, SSH and DER; DER also as bare base64, the way some consoles show a public key."""
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
    """PEM public keys and certificates, or a JWKS; whichever it is."""
    if b"-----BEGIN" in document:
        return KeySet(_pem_keys(document))
    return parse_jwks(document)


def _pem_keys(document: bytes) -> list[Key]:
    """A certificate counts for its key alone: when it ends is for whoever issues tokens."""
    keys = []
    for block in _PEM.finditer(document):
        label = block[1]
        if b"PRIVATE" in label:
            raise UnusableKeys("it holds a private key: give the public one, and keep the private one elsewhere")
        try:
            if label == b"CERTIFICATE":
                public: Any = x509.load_pem_x509_certificate(block[0]).public_key()
            elif label in (b"PUBLIC KEY", b"RSA PUBLIC KEY"):
                public = load_pem_public_key(block[0])
            else:
                continue
        except Exception:  # whatever a parser says of bytes that are no key
            raise UnusableKeys("a PEM block in it cannot be read") from None
        keys.append(key_of(public, None, None))
    if not keys:
        raise UnusableKeys("there is no public key or certificate in it")
    return _bounded(keys)


def parse_jwks(document: bytes) -> KeySet:
    """The keys of a JWKS that verify signatures. Others are passed over (RFC 7517, 5), secret ones above all."""
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError):
        raise UnusableKeys("it is neither PEM nor JSON") from None
    if isinstance(parsed, dict) and "kty" in parsed:
        parsed = {"keys": [parsed]}
    if not isinstance(parsed, dict) or not isinstance(parsed.get("keys"), list):
        raise UnusableKeys('it is no JWKS: it has no list "keys"')
    entries = _bounded(parsed["keys"])
    return KeySet(key for entry in entries if isinstance(entry, dict) and (key := _jwk(entry)) is not None)


def _jwk(entry: Mapping[str, Any]) -> Key | None:
    kid, algorithm = entry.get("kid"), entry.get("alg")
    operations = entry.get("key_ops", ["verify"])
    if kid is not None and not (isinstance(kid, str) and len(kid) <= MAX_KID_CHARS):
        return None
    # A private key that was published vouches for nothing; an oct key would be a secret among public ones.
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
    except Exception:  # one key that cannot be read must not take the others with it
        return None


def key_of(public: Any, kid: str | None, algorithm: object) -> Key:
    """A key and its one algorithm: the one it names, if that fits; else the one of its kind."""
    match public:
        case RSAPublicKey():
            if public.key_size not in _RSA_BITS:
                raise UnusableKeys(f"an RSA key of {public.key_size} bits: use {_RSA_BITS[0]} to {_RSA_BITS[-1]}")
            fitting, usual = _RSA, "RS256"
        case EllipticCurvePublicKey():
            usual = _BY_CURVE.get(public.curve.name, "")
            fitting = frozenset({usual})
        case Ed25519PublicKey() | Ed448PublicKey():
            # RFC 9864 names each curve for itself; tokens still say EdDSA.
            fitting, usual = frozenset({"EdDSA"}), "EdDSA"
            algorithm = "EdDSA" if algorithm in ("Ed25519", "Ed448") else algorithm
        case _:
            raise UnusableKeys("a key in it is of no kind that signs tokens: use RSA, P-256, P-384, P-521 or Ed25519")
    if not usual:
        raise UnusableKeys("a key in it is on another curve than P-256, P-384 or P-521")
    if algorithm is not None and algorithm not in fitting:
        raise UnusableKeys("a key in it does not fit the algorithm it names")
    return Key(usual if algorithm is None else str(algorithm), public, kid)


def _bounded(keys: list[Any]) -> list[Any]:
    if len(keys) > MAX_KEYS:
        raise UnusableKeys(f"it holds {len(keys)} keys: at most {MAX_KEYS} are taken")
    return keys
