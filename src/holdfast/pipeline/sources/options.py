"""Parsing of the options of sources and sinks. Unknown options are refused, and secrets are never shown."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.durations import parse_duration_ms

Parser = Callable[[str, str], Any]

# Options of Spark itself, which it passes to every source.
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
_FLAGS = {"true": True, "false": False}


def text(name: str, given: str) -> str:
    """Parse a text that is not empty."""
    if not given:
        raise InvalidArgument(f"option {name} is empty", field=name)
    return given


def count(name: str, given: str) -> int:
    """Parse a positive whole number."""
    if not (given.isascii() and given.isdigit() and 0 < len(given) < 16 and int(given) > 0):
        raise InvalidArgument(f"option {name} is {given[:80]!r}: give a whole number above 0", field=name)
    return int(given)


def flag(name: str, given: str) -> bool:
    """Parse true or false."""
    if given.lower() not in _FLAGS:
        raise InvalidArgument(f"option {name} is {given[:80]!r}: give true or false", field=name)
    return _FLAGS[given.lower()]


def duration(name: str, given: str) -> int:
    """Parse a duration to milliseconds. A bare number is seconds."""
    bare = given.replace(".", "", 1).isdigit() and given.isascii()
    return parse_duration_ms(name, float(given) if bare else given)


def names(name: str, given: str) -> tuple[str, ...]:
    """Parse names that are separated by commas."""
    parts = tuple(each.strip() for each in given.split(","))
    if not all(parts):
        raise InvalidArgument(f"option {name} is {given[:80]!r}: give names separated by commas", field=name)
    return parts


def one_of(*choices: str) -> Parser:
    """Return a parser that accepts only these values."""

    def parse(name: str, given: str) -> str:
        if given.lower() not in choices:
            raise InvalidArgument(f"option {name} is {given[:80]!r}: give {' or '.join(choices)}", field=name)
        return given.lower()

    return parse


# The options of every source and sink: the store, and how to connect to it.
STORE_OPTIONS: dict[str, Parser] = {
    "url": text,
    "urlFile": text,
    "token": text,
    "tokenFile": text,
    "tlsCa": text,
    "tlsCert": text,
    "tlsKey": text,
    "timeout": text,
}


def parse_options(source: str, given: Mapping[str, str], known: Mapping[str, Parser]) -> dict[str, Any]:
    """Parse all options, and return the values by their documented names.

    Raise InvalidArgument for an unknown option. The error never shows the value, which is a secret if `token` is
    misspelt.
    """
    by_lower = {name.lower(): name for name in known}
    parsed: dict[str, Any] = {}
    for name in given:
        lower = name.lower()
        if lower in _OF_SPARK:
            continue
        if lower not in by_lower:
            raise InvalidArgument(
                f"{name!r} is not an option of {source}; its options are {', '.join(sorted(known))}", field=name
            )
        parsed[by_lower[lower]] = known[by_lower[lower]](by_lower[lower], given[name])
    return parsed


@dataclass(frozen=True)
class StoreAddress:
    """The address of a store, which is sent to Spark's workers. Its repr has no secret, because it may be logged."""

    url: str | None
    url_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def address(self) -> str:
        """Return the URL, read from its file if it was given in one."""
        return self.url if self.url is not None else _read("urlFile", self.url_file or "")

    @property
    def is_http(self) -> bool:
        """Return whether it is the URL of a server."""
        return self.address.lower().startswith(("http://", "https://"))

    @property
    def is_postgres(self) -> bool:
        """Return whether it names databases of PostgreSQL."""
        return self.address.lower().startswith(("postgres://", "postgresql://"))

    @property
    def databases(self) -> list[str]:
        """The URLs of all databases of a PostgreSQL store."""
        return [each.strip() for each in self.address.split(",")]

    @property
    def is_directory(self) -> bool:
        return "://" not in self.address or self.address.lower().startswith("rocks://")

    def client_settings(self) -> dict[str, Any]:
        """Return the settings for a connection to a server. A token file is read for each use, as it may be renewed."""
        if not self.is_http:
            return {}
        given: dict[str, Any] = dict(self.settings)
        if self.token is not None:
            given["token"] = self.token
        elif self.token_file is not None:
            path = self.token_file
            given["token"] = lambda: _read("tokenFile", path)
        return given


_CLIENT_NAMES = {"tlsCa": "tls_ca", "tlsCert": "tls_cert", "tlsKey": "tls_key", "timeout": "timeout"}


def parse_store_address(source: str, options: Mapping[str, Any]) -> StoreAddress:
    """Return the address of the store. Raise InvalidArgument if it is missing or contains a password."""
    url, url_file = options.get("url"), options.get("urlFile")
    if (url is None) == (url_file is None):
        raise InvalidArgument(
            f"{source} needs option url, or urlFile with a file that contains it: http://host:port of a server, "
            "postgres://… of its databases, or the directory of a backup",
            field="url",
        )
    if url is not None and _has_password(url):
        # The error does not show the URL. Spark shows options in plans, in its user interface and in event logs.
        raise InvalidArgument(
            "option url contains a password, which would appear in plans and logs: give the URL in urlFile, or the "
            "password in PGPASSFILE or PGPASSWORD on the workers",
            field="url",
        )
    if options.get("token") is not None and options.get("tokenFile") is not None:
        raise InvalidArgument("give token or tokenFile, not both", field="tokenFile")
    settings = tuple((ours, options[name]) for name, ours in _CLIENT_NAMES.items() if name in options)
    return StoreAddress(url, url_file, options.get("token"), options.get("tokenFile"), settings)


def _has_password(url: str) -> bool:
    try:
        return any("://" in each and urlsplit(each).password is not None for each in url.split(","))
    except ValueError:
        return "@" in url


def _read(option: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"{option} {os.fspath(path)} cannot be read: {reason}", field=option) from None
    if not found:
        raise InvalidArgument(f"{option} {path} is empty", field=option)
    return found
