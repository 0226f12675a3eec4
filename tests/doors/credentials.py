"""Keys, tokens and certificates for tests: good ones, and any kind of bad one."""

import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from holdfast.doors.identity import Identity
from holdfast.model.errors import Unauthenticated
from holdfast.testing.clock import START_MS

NOW_S = START_MS // 1_000
HOUR_S = 3_600
# A word to look for wherever it must not be.
CANARY = "canary-7f3a-secret-of-32-bytes-or-more"


@cache
def private_key(kind: str, number: int = 0) -> Any:
    """The same key each time; `number` makes another of its kind."""
    match kind:
        case "RS256" | "RS384" | "RS512" | "PS256":
            return rsa.generate_private_key(65_537, 2_048)
        case "RSA-1024":
            return rsa.generate_private_key(65_537, 1_024)
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case "ES512":
            return ec.generate_private_key(ec.SECP521R1())
        case "ES256K":
            return ec.generate_private_key(ec.SECP256K1())
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "Ed448":
            return ed448.Ed448PrivateKey.generate()
    raise ValueError(kind)


def public_pem(key: Any) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def public_der(key: Any) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def public_ssh(key: Any) -> bytes:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def private_pem(key: Any) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_jwk(key: Any, **more: Any) -> dict[str, Any]:
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        return {**RSAAlgorithm.to_jwk(public, as_dict=True), "key_ops": ["verify"], **more}
    if isinstance(public, ec.EllipticCurvePublicKey):
        return {**ECAlgorithm.to_jwk(public, as_dict=True), **more}
    return {**OKPAlgorithm.to_jwk(public, as_dict=True), **more}


def jwks(*entries: Any) -> bytes:
    return json.dumps({"keys": list(entries)}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a valid token of ten minutes. A claim changed to `...` is left out."""
    whole = {
        "tenant": "acme",
        "scope": "read write",
        "sub": "worker-1",
        "aud": "holdfast",
        "iat": NOW_S,
        "exp": NOW_S + 600,
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not ...}


def segment(document: Any) -> bytes:
    if not isinstance(document, bytes):
        document = json.dumps(document).encode()
    return base64.urlsafe_b64encode(document).rstrip(b"=")


def sign(header: Mapping[str, Any], payload: Any, key: Any, algorithm: str) -> bytes:
    """Signed by `algorithm`, whatever the header says; bytes as the key: HMAC with them, whatever they are."""
    signed = segment(dict(header)) + b"." + segment(payload)
    if isinstance(key, bytes):
        digest = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}[algorithm]
        signature = hmac.new(key, signed, digest).digest()
    else:
        signature = jwt.get_algorithm_by_name(algorithm).sign(signed, key)
    return signed + b"." + segment(signature)


def token(key: Any, algorithm: str, header: Mapping[str, Any] | None = None, **changes: Any) -> bytes:
    whole = {"alg": algorithm, "typ": "JWT", **(header or {})}
    return sign({k: v for k, v in whole.items() if v is not ...}, claims(**changes), key, algorithm)


def bearer(given: bytes | str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + (given.encode() if isinstance(given, str) else given)}


def es_token(number: int = 0, kid: str | None = None, **changes: Any) -> dict[bytes, bytes]:
    header = {} if kid is None else {"kid": kid}
    return bearer(token(private_key("ES256", number), "ES256", header, exp=NOW_S + 24 * HOUR_S, **changes))


def es_jwk(number: int = 0, kid: str | None = None, **more: Any) -> dict[str, Any]:
    return public_jwk(private_key("ES256", number), **({} if kid is None else {"kid": kid}), **more)


async def is_accepted(identity: Identity, headers: dict[bytes, bytes]) -> bool:
    try:
        await identity.caller_of(headers, None)
    except Unauthenticated:
        return False
    return True


class Authority:
    """A certificate authority, and what it issues."""

    def __init__(self, name: str = "test authority") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.certificate = (
            self._builder(self.name, self.key.public_key(), days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def issue(
        self,
        *names: x509.GeneralName,
        common_name: str = "someone",
        days: int = 30,
        purposes: Sequence[x509.ObjectIdentifier] = (x509.ExtendedKeyUsageOID.CLIENT_AUTH,),
    ) -> tuple[x509.Certificate, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
        builder = (
            self._builder(subject, key.public_key(), days=days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256()), key

    def issue_server(self) -> tuple[x509.Certificate, Any]:
        return self.issue(
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            purposes=[x509.ExtendedKeyUsageOID.SERVER_AUTH],
        )

    def _builder(self, subject: x509.Name, public: Any, days: int) -> x509.CertificateBuilder:
        # The TLS library looks at the machine's own clock.
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=60))
            .not_valid_after(now + datetime.timedelta(days=days))
        )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def write_pair(folder: Path, name: str, pair: tuple[x509.Certificate, Any]) -> tuple[str, str]:
    """Write a certificate and its key to PEM files."""
    certificate, key = pair
    certificate_path, key_path = folder / f"{name}.crt", folder / f"{name}.key"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(private_pem(key))
    return str(certificate_path), str(key_path)
