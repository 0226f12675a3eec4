"""Kinds of settings: how a value is parsed, how it is shown, and how the accepted form is described in errors."""

import os
import re
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any, Protocol
from urllib.parse import urlsplit

from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.names import parse_name
from holdfast.model.parsing.durations import parse_duration_ms
from holdfast.model.parsing.store_url import UrlKind, parse_store_url
from holdfast.model.scopes import Scope
from holdfast.service.access import EVERY_TENANT

MASKED = "******"


class NotAccepted(Exception):
    """A value is not of its kind. The text, if any, suggests the intended value; it never contains a secret."""


class Kind(Protocol):
    """A kind of settings. Subclasses parse and show the values of one kind."""

    # The placeholder of the value in `--help`.
    metavar: str
    accepts: str
    is_secret: bool

    def parse(self, given: object) -> Any:
        """Return the value of a text (from a flag or a variable) or of an object (from TOML or a program).

        Raise `NotAccepted`.
        """

    def show(self, value: Any) -> str:
        """Return the value as it would be written in a file. A secret is masked."""


class Secret:
    """A text that is masked wherever it is printed. Only `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return MASKED

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class _Shown:
    is_secret = False

    def show(self, value: Any) -> str:
        return str(value)


class Text(_Shown):
    """A text that is not empty."""

    def __init__(self, metavar: str = "TEXT", accepts: str = "a text that is not empty") -> None:
        self.metavar = metavar
        self.accepts = accepts

    def parse(self, given: object) -> str:
        if not isinstance(given, str) or not given.strip() or not given.isprintable():
            raise NotAccepted
        return given.strip()


class Directory(Text):
    """The path of a directory. A URL, or a host and port, is refused, because it was hardly meant as a directory."""

    def __init__(self) -> None:
        super().__init__("DIR", "a path of a directory, ./NAME where the name looks like a host or a URL")

    def parse(self, given: object) -> str:
        return parse_store_url(given).text if isinstance(given, os.PathLike) else _directory(super().parse(given))


class Url(Text):
    """A URL, or a path if `or_path` is set. A password in it is masked when it is shown."""

    def __init__(self, accepts: str, schemes: tuple[str, ...], *, or_path: bool = False) -> None:
        super().__init__("URL", accepts)
        self._schemes = schemes
        self._or_path = or_path

    def parse(self, given: object) -> str:
        text = super().parse(given)
        for part in text.split(","):
            scheme, has_scheme, _ = part.strip().partition("://")
            if has_scheme:
                if scheme.lower() not in self._schemes:
                    raise NotAccepted
            elif self._or_path:
                _directory(part.strip())
            else:
                raise NotAccepted
        return text

    def show(self, value: str) -> str:
        return ",".join(without_password(part) for part in value.split(","))


def _directory(text: str) -> str:
    try:
        if parse_store_url(text).kind is UrlKind.DIRECTORY:
            return text
    except InvalidArgument as error:
        raise NotAccepted(error.message) from None
    raise NotAccepted


class Secrets:
    """A kind whose values are `Secret`."""

    metavar = "SECRET"
    accepts = "a text that is not empty"
    is_secret = True

    def parse(self, given: object) -> Secret:
        if not isinstance(given, str) or not given.strip():
            raise NotAccepted
        return Secret(given)

    def show(self, value: Secret) -> str:
        return MASKED


class BearerTokens(Secrets):
    """A secret that callers send as `Authorization: Bearer`."""

    accepts = "at least 16 visible ASCII characters without spaces"

    def parse(self, given: object) -> Secret:
        if not isinstance(given, str) or not re.fullmatch(r"[!-~]{16,1024}", given):
            raise NotAccepted
        return Secret(given)


class Duration(_Shown):
    """A duration in milliseconds, given with a unit."""

    metavar = "DURATION"

    def __init__(self, *, may_be_zero: bool = False) -> None:
        self._may_be_zero = may_be_zero
        self.accepts = "a duration such as 3s, 500ms, 5m or 7d" + (", or 0" if may_be_zero else ", above 0")

    def parse(self, given: object) -> int:
        try:
            # The only number that needs no unit.
            ms = 0 if given == "0" else parse_duration_ms("", given)
        except HoldfastError:
            raise NotAccepted from None
        if not ms and not self._may_be_zero:
            raise NotAccepted
        return ms

    def show(self, value: int) -> str:
        for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
            if value and value % unit_ms == 0:
                return f"{value // unit_ms}{unit}"
        return f"{value}ms" if value else "0"


_SIZE = re.compile(r"(\d+)\s*([kmg]?i?b)?", re.ASCII | re.IGNORECASE)
_SIZE_UNITS = {"b": 1, "kb": 1_000, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


class Size(_Shown):
    """A number of bytes above 0, given with or without a unit."""

    metavar = "SIZE"
    accepts = "a size such as 1MiB, 512KiB or 1048576 (bytes), above 0"

    def parse(self, given: object) -> int:
        size = 0
        if isinstance(given, int) and not isinstance(given, bool):
            size = given
        elif isinstance(given, str) and (written := _SIZE.fullmatch(given.strip())):
            size = int(written[1]) * _SIZE_UNITS.get((written[2] or "b").lower(), 0)
        if not 1 <= size < 1 << 53:
            raise NotAccepted
        return size

    def show(self, value: int) -> str:
        for unit, bytes_each in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value % bytes_each == 0:
                return f"{value // bytes_each}{unit}"
        return str(value)


class Integer(_Shown):
    """A whole number in a range."""

    metavar = "NUMBER"

    def __init__(self, lowest: int, highest: int) -> None:
        self._lowest = lowest
        self._highest = highest
        self.accepts = f"a whole number from {lowest} to {highest}"

    def parse(self, given: object) -> int:
        if isinstance(given, str) and re.fullmatch(r"-?\d{1,18}", given.strip(), re.ASCII):
            given = int(given)
        if not isinstance(given, int) or isinstance(given, bool) or not self._lowest <= given <= self._highest:
            raise NotAccepted
        return given


_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Boolean:
    """A truth value."""

    metavar = "BOOL"
    accepts = "true or false"
    is_secret = False

    def parse(self, given: object) -> bool:
        if isinstance(given, str):
            given = _WORDS.get(given.strip().lower())
        if not isinstance(given, bool):
            raise NotAccepted
        return given

    def show(self, value: bool) -> str:
        return "true" if value else "false"


class Choice(_Shown):
    """One of several words."""

    def __init__(self, *choices: str) -> None:
        self._choices = choices
        self.metavar = "|".join(choices)
        self.accepts = " or ".join(choices)

    def parse(self, given: object) -> str:
        if not isinstance(given, str) or given.strip() not in self._choices:
            raise NotAccepted
        return given.strip()


class HostNames(_Shown):
    """Names and addresses that callers may use for a server, without ports."""

    metavar = "NAME,…"
    accepts = "names or addresses without a port, separated by commas (in TOML also a list), or * for any"

    def parse(self, given: object) -> tuple[str, ...]:
        parts = given.split(",") if isinstance(given, str) else given
        if not isinstance(parts, list | tuple) or not parts:
            raise NotAccepted
        return tuple(_host_name(part) for part in parts)

    def show(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


_HOST_NAME = re.compile(r"\*|[\w-]+(\.[\w-]+)*\.?", re.ASCII)


def _host_name(given: object) -> str:
    name = given.strip() if isinstance(given, str) else ""
    if _HOST_NAME.fullmatch(name):
        return name
    try:
        return str(IPv6Address(name.removeprefix("[").removesuffix("]")))
    except ValueError:
        raise NotAccepted from None


class Grants:
    """Tenants and scopes of certificates by their exact names: `san=tenant,…`, or a table in TOML."""

    metavar = "SAN=TENANT,…"
    accepts = "san=tenant,… (or san=tenant:read+write+admin), in TOML also a table; each san once"
    is_secret = False

    def parse(self, given: object) -> dict[str, str]:
        pairs: list[tuple[object, object]]
        if isinstance(given, str):
            # Split at the last equals sign: a URI may contain one, a tenant's name cannot.
            pairs = [(san, grant) for san, _, grant in (part.rpartition("=") for part in given.split(","))]
        elif isinstance(given, Mapping):
            pairs = list(given.items())
        else:
            raise NotAccepted
        grants: dict[str, str] = {}
        for san, grant in pairs:
            name = san.strip() if isinstance(san, str) else ""
            if not name or name in grants:
                raise NotAccepted
            grants[name] = _grant(grant)
        if not grants:
            raise NotAccepted
        return grants

    def show(self, value: dict[str, str]) -> str:
        return ",".join(f"{san}={grant}" for san, grant in value.items())


def _grant(given: object) -> str:
    """Return `tenant` or `tenant:read+write` once it is checked. `doors.identity` takes it apart."""
    if not isinstance(given, str):
        raise NotAccepted
    tenant, has_scopes, scopes = given.strip().partition(":")
    try:
        if tenant != EVERY_TENANT:
            parse_name("tenant", tenant)
        if has_scopes:
            for scope in scopes.split("+"):
                Scope(scope.strip())
    except (HoldfastError, ValueError):
        raise NotAccepted from None
    return given.strip()


def without_password(url: str) -> str:
    """Return a URL for display, with its password masked."""
    try:
        has_password = urlsplit(url).password is not None
    except ValueError:
        return MASKED
    if not has_password:
        return url
    before, _, host = url.rpartition("@")
    scheme, _, user = before.partition("://")
    return f"{scheme}://{user.partition(':')[0]}:{MASKED}@{host}"
