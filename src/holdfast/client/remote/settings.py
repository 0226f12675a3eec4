"""The settings of a connection to a server: its address, and how calls are made."""

import os
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.client.options import Token
from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import Duration, parse_duration_ms

TOKEN_VARIABLE = "HOLDFAST_TOKEN"
MAX_RETRIES = 1_000
MAX_POOL = 10_000


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server. `prefix` comes before every path, for a server that is mounted below a path."""

    url: str
    host: str
    port: int
    is_tls: bool
    prefix: str

    @property
    def authority(self) -> str:
        """The host, with the port unless it is the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


class RemoteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `holdfast.open` for a server, parsed."""

    address: Address
    token: Token | None = None
    # How long one try of a call may take. A claim's wait is added to it.
    timeout_ms: int = 30_000
    # Repetitions of a call after its first try, where repeating is safe.
    retries: int = 10
    # Connections for calls that return at once. Waiting claims and subscriptions have their own.
    pool: int = 64
    # How long one request of a waiting claim stays open; None for as long as the claim waits.
    wait_round_ms: int | None = 20_000
    tls: ssl.SSLContext | None = None


_SETTINGS = ("pool", "retries", "timeout", "tls_ca", "tls_cert", "tls_key", "token", "wait_round")


def parse_settings(url: str, given: Mapping[str, Any]) -> RemoteSettings:
    """Return the settings. Raise `InvalidArgument`, which names the setting, for an unknown or malformed one."""
    for name in given:
        if name not in _SETTINGS:
            raise InvalidArgument(
                f"{name!r} is not a setting of a connection to a server; the settings are {', '.join(_SETTINGS)}",
                field=name,
            )
    address = parse_address(url)
    fields: dict[str, Any] = {"address": address, "token": _token(given.get("token"))}
    if given.get("timeout") is not None:
        fields["timeout_ms"] = _positive_ms("timeout", given["timeout"])
    if "wait_round" in given:
        wait_round = given["wait_round"]
        fields["wait_round_ms"] = None if wait_round is None else _positive_ms("wait_round", wait_round)
    if given.get("retries") is not None:
        fields["retries"] = check_integer("retries", given["retries"], 0, MAX_RETRIES)
    if given.get("pool") is not None:
        fields["pool"] = check_integer("pool", given["pool"], 1, MAX_POOL)
    fields["tls"] = _tls(address, given.get("tls_ca"), given.get("tls_cert"), given.get("tls_key"))
    return RemoteSettings(**fields)


def parse_address(url: str) -> Address:
    """Return the address in the URL of a server. Raise `InvalidArgument` for a malformed URL or one with a secret."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"{url[:200]!r} is not a URL: {error}", field="url") from None
    if parts.username is not None or parts.password is not None:
        # The error does not show the URL, because it contains a secret.
        raise InvalidArgument(
            "the URL has a user or a password in it, which would appear in logs and error messages: "
            f"give the URL without it, and token=... or the variable {TOKEN_VARIABLE}",
            field="url",
        )
    if not parts.hostname:
        raise InvalidArgument(f"{url[:200]!r} has no host: give http://host:port", field="url")
    if parts.query or parts.fragment:
        raise InvalidArgument(
            f"{url[:200]!r} has a query or a fragment: settings are given by name, as in open(url, token=...)",
            field="url",
        )
    is_tls = parts.scheme.lower() == "https"
    prefix = quote(parts.path.rstrip("/"), safe="/%~:@!$&'()*+,;=-._")
    host = parts.hostname
    address = Address(url="", host=host, port=port or (443 if is_tls else 80), is_tls=is_tls, prefix=prefix)
    return msgspec.structs.replace(address, url=f"{'https' if is_tls else 'http'}://{address.authority}{prefix}")


def check_token(token: object) -> str:
    """Return the token. Raise `InvalidArgument` if it cannot be sent in a header."""
    if isinstance(token, str) and token and all("!" <= character <= "~" for character in token):
        return token
    # The error does not show the token, because it may be valid except for a line end.
    raise InvalidArgument("the token must be text of visible characters, without spaces or line ends", field="token")


def _token(given: object) -> Token | None:
    if given is None:
        given = os.environ.get(TOKEN_VARIABLE) or None
    if given is None or callable(given):
        return given
    return check_token(given)


def _positive_ms(name: str, value: Duration) -> int:
    ms = parse_duration_ms(name, value)
    if not ms:
        raise InvalidArgument(f"{name} must be more than 0", field=name)
    return ms


def _tls(address: Address, ca: object, cert: object, key: object) -> ssl.SSLContext | None:
    for name, value in (("tls_ca", ca), ("tls_cert", cert), ("tls_key", key)):
        if value is not None and not address.is_tls:
            raise InvalidArgument(f"{name} is only for https:// URLs, and the URL is {address.url}", field=name)
        if value is not None and not isinstance(value, str | os.PathLike):
            raise InvalidArgument(f"{name} must be the path of a PEM file", field=name)
    if not address.is_tls:
        return None
    if key is not None and cert is None:
        raise InvalidArgument("tls_key needs tls_cert, its certificate", field="tls_key")
    try:
        context = ssl.create_default_context(cafile=None if ca is None else os.fspath(ca))  # type: ignore[call-overload]  # checked above
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"tls_ca {ca} cannot be read: {error}", field="tls_ca") from None
    if cert is not None:
        try:
            context.load_cert_chain(os.fspath(cert), None if key is None else os.fspath(key))  # type: ignore[call-overload]  # checked above
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"tls_cert {cert} cannot be used: {error}", field="tls_cert") from None
    made: ssl.SSLContext = context
    return made
