"""Options of a source or sink: checked by name, parsed once, and no secret among what may be shown."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.durations import parse_duration_ms

Parser = Callable[[str, str], Any]

# Spark's own, which it hands on to every source.
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
_FLAGS = {"true": True, "false": False}


def text(name: str, given: str) -> str:
    if not given:
        raise InvalidArgument(f"option {name} is empty", field=name)
    return given


def count(name: str, given: str) -> int:
    if not (given.isascii() and given.isdigit() and 0 < len(given) < 16 and int(given) > 0):
        raise InvalidArgument(f"option {name} is {given[:80]!r}: give a whole number above 0", field=name)
    return int(given)


def flag(name: str, given: str) -> bool:
    if given.lower() not in _FLAGS:
        raise InvalidArgument(f"option {name} is {given[:80]!r}: give true or false", field=name)
    return _FLAGS[given.lower()]


def duration(name: str, given: str) -> int:
    """In milliseconds; of a bare number, seconds."""
    bare = given.replace(".", "", 1).isdigit() and given.isascii()
    return parse_duration_ms(name, float(given) if bare else given)


def names(name: str, given: str) -> tuple[str, ...]:
    parts = tuple(each.strip() for each in given.split(","))
    if not all(parts):
        raise InvalidArgument(f"option {name} is {given[:80]!r}: give names with commas between them", field=name)
    return parts


def one_of(*choices: str) -> Parser:
    def parse(name: str, given: str) -> str:
        if given.lower() not in choices:
            raise InvalidArgument(f"option {name} is {given[:80]!r}: give {' or '.join(choices)}", field=name)
        return given.lower()

    return parse


# Where the store is, and how it is asked: of every source and sink.
PLACE: dict[str, Parser] = {
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
    """Values by the name as documented; what nobody knows is refused by its name, and never shown: a misspelt `token`
    has a secret in it."""
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
    """Where a store is. Goes to the workers; its repr, which may end up in a log, has no secret."""

    url: str | None
    url_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def address(self) -> str:
        return self.url if self.url is not None else _read("urlFile", self.url_file or "")

    @property
    def is_http(self) -> bool:
        return self.address.lower().startswith(("http://", "https://"))

    @property
    def is_postgres(self) -> bool:
        return self.address.lower().startswith(("postgres://", "postgresql://"))

    @property
    def databases(self) -> list[str]:
        """Of a store on several PostgreSQL databases: the URL of each."""
        return [each.strip() for each in self.address.split(",")]

    @property
    def is_directory(self) -> bool:
        return "://" not in self.address or self.address.lower().startswith("rocks://")

    def client_settings(self) -> dict[str, Any]:
        """Of a connection to a server. The token is read when it is needed: it may have been renewed."""
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


def place_of(source: str, options: Mapping[str, Any]) -> StoreAddress:
    url, url_file = options.get("url"), options.get("urlFile")
    if (url is None) == (url_file is None):
        raise InvalidArgument(
            f"{source} needs option url, or urlFile, a file that has it: http://host:port of a server, "
            "postgres://… of its databases, or the directory of a backup",
            field="url",
        )
    if url is not None and _has_password(url):
        # Not shown. Options stand in plans, on Spark's pages and in event logs.
        raise InvalidArgument(
            "option url has a password in it, which would end up in plans and logs: give it in urlFile, or leave it to "
            "PGPASSFILE or PGPASSWORD where the workers run",
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
