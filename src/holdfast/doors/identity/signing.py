"""Sign tokens with the secret or the private key whose counterpart a server verifies them with."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from holdfast.doors.identity.keys import Key, KeySet, UnusableKeys, key_of, secret_keys

_JWK: dict[str, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}


class SigningKey(NamedTuple):
    """A key that signs tokens. `verifier` is the key that a server verifies them with."""

    material: Any
    verifier: Key

    def __repr__(self) -> str:
        return f"<signing {self.verifier!r}>"

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Return a signed token with these claims."""
        headers = {} if self.verifier.kid is None else {"kid": self.verifier.kid}
        return jwt.encode(dict(claims), self.material, self.verifier.algorithm, headers)


def secret_signing_key(secret: str) -> SigningKey:
    """Return the signing key of a shared secret. Raise `InvalidArgument` for an unsuitable secret."""
    [key] = secret_keys(secret).all
    return SigningKey(key.material, key)


def private_signing_key(document: bytes, published: KeySet | None) -> SigningKey:
    """Return the private key in a PEM file or a JWK. Raise `UnusableKeys` if it has none that a server would accept.

    `published` are the public keys that the server has, if known. The private key must then match one of them, and gets
    its `kid` and algorithm.
    """
    private, kid, algorithm = _jwk(document) if document.lstrip().startswith(b"{") else (_pem(document), None, None)
    verifier = key_of(private.public_key(), kid, algorithm)
    if published is None:
        return SigningKey(private, verifier)
    spelled = _der(verifier.material)
    for key in published.all:
        if _der(key.material) == spelled:
            return SigningKey(private, key)
    raise UnusableKeys("its public key is not in jwt_keys; a server with these keys would refuse the token")


def _pem(document: bytes) -> Any:
    try:
        return load_pem_private_key(document, password=None)
    except TypeError:
        raise UnusableKeys("the private key is encrypted; decrypt it first, for example with openssl pkey") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UnusableKeys("it contains no private key; give a PEM file or a private JWK") from None


def _jwk(document: bytes) -> tuple[Any, str | None, str | None]:
    try:
        entry = json.loads(document)
        if "keys" in entry:
            [entry] = [each for each in entry["keys"] if "d" in each]
        private = _JWK[entry["kty"]].from_jwk(entry)
        private.public_key()  # raises for a public key
        return private, entry.get("kid"), entry.get("alg")
    except Exception:  # the parsers raise many kinds of error for a document that is not a key
        raise UnusableKeys("it is not a JWK with one private key (RSA, EC or OKP, with d)") from None


def _der(public: Any) -> bytes | None:
    """Return the DER form of a public key, for comparisons; None for a secret."""
    return None if isinstance(public, bytes) else public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
