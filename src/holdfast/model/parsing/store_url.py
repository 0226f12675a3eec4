"""Parse the argument of `open`: a directory, or the URL of a store or a server.

A mistyped URL must not create a directory of that name, in which messages would be lost. Text that looks like a host or
a URL is therefore refused, and the error suggests the right spelling. A directory with such a name needs a prefix:
`./localhost:7077`.
"""

import os
import re
from difflib import get_close_matches
from enum import StrEnum
from typing import NamedTuple

from holdfast.model.errors import InvalidArgument


class UrlKind(StrEnum):
    """The kinds of stores and servers that `open` accepts."""

    DIRECTORY = "directory"
    MEMORY = "memory"
    HTTP = "http"
    CAPNP = "capnp"
    FRAMED = "framed"
    POSTGRES = "postgres"
    OBJECTS = "objects"


SCHEMES: dict[str, UrlKind] = {
    "http": UrlKind.HTTP,
    "https": UrlKind.HTTP,
    "capnp": UrlKind.CAPNP,
    "capnps": UrlKind.CAPNP,
    "holdfast": UrlKind.FRAMED,
    "holdfasts": UrlKind.FRAMED,
    "memory": UrlKind.MEMORY,
    "postgres": UrlKind.POSTGRES,
    "postgresql": UrlKind.POSTGRES,
    "file": UrlKind.OBJECTS,
    "s3": UrlKind.OBJECTS,
    "az": UrlKind.OBJECTS,
    "gs": UrlKind.OBJECTS,
}
_ACCEPTED = (
    "a directory, memory://, http://host:port, holdfast://host:port, capnp://host:port, postgres://, file:///, s3://, "
    "az:// or gs://"
)
# A scheme with mistyped colon and slashes: `http:/host`, `http//host`, `memory:`.
_MISTYPED = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)(?P<mark>:/+|//+|:)(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_HOST_AND_PORT = re.compile(r"/*(?P<host>[^/\s]*):(?P<port>\d+)(?P<path>/.*)?")
_HOST = re.compile(r"localhost|\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:.]+\]", re.IGNORECASE)
_ADDRESS_6 = re.compile(r"[0-9a-f]*(:[0-9a-f]*){2,}", re.IGNORECASE)
_PORT = 7077
_SHOWN = 200


class StoreUrl(NamedTuple):
    """A parsed argument of `open`."""

    kind: UrlKind
    # The given text; for an `os.PathLike`, its path.
    text: str

    @property
    def is_server(self) -> bool:
        """Return whether it is the URL of a server."""
        return self.kind in (UrlKind.HTTP, UrlKind.FRAMED, UrlKind.CAPNP)


def parse_store_url(given: str | os.PathLike[str], *, field: str = "url") -> StoreUrl:
    """Return the kind and the text of an argument of `open`. An `os.PathLike` is always a directory.

    `field` is the name of the argument, for the error. Raise `InvalidArgument`, which suggests the right spelling, for
    text that looks like a mistyped URL or has an unknown scheme.
    """
    if isinstance(given, os.PathLike):
        path = os.fsdecode(given)
        if not path:
            raise InvalidArgument(f"{field} is empty: give {_ACCEPTED}", field=field)
        if (wrapped := _MISTYPED.fullmatch(path)) and wrapped["mark"] == ":/" and wrapped["scheme"].lower() in SCHEMES:
            raise InvalidArgument(f"{_shown(path)!r} is a URL in a path object: give the URL as text", field=field)
        # With the prefix no later check takes the name for a host.
        return StoreUrl(UrlKind.DIRECTORY, path if path.startswith(("/", "./", "../")) else f"./{path}")
    if not isinstance(given, str):
        raise InvalidArgument(f"{field} is of type {type(given).__name__}: give {_ACCEPTED}", field=field)
    if not given.strip():
        raise InvalidArgument(f"{field} is empty: give {_ACCEPTED}", field=field)
    scheme, has_scheme, rest = given.partition("://")
    if has_scheme:
        kind = SCHEMES.get(scheme.lower())
        if kind is None:
            raise _unknown_scheme(scheme, rest, field)
        return StoreUrl(kind, given)
    if (suggestion := _suggest_url(given)) is not None:
        shown = _shown(given)
        raise InvalidArgument(
            f"{shown!r} looks like a host or a URL: write {_shown(suggestion)}, or ./{shown.lstrip('/')} for a "
            "directory of that name",
            field=field,
        )
    return StoreUrl(UrlKind.DIRECTORY, given)


def without_secrets(url: str) -> str:
    """Return a URL for display: without user, password, query and fragment. Return a directory unchanged."""
    scheme, has_scheme, rest = url.partition("://")
    if not has_scheme:
        return url
    location = re.split("[?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(location) :]:
        # A password may contain these characters, so the location may be a part of it.
        return f"{scheme}://…"
    _, has_user, host = location.rpartition("@")
    return f"{scheme}://{'…@' if has_user else ''}{host}"


def _suggest_url(text: str) -> str | None:
    """Return the probable URL for text without `://`, or None if it is the path of a directory."""
    if text.startswith(("./", "../", "~")) or (text.startswith("/") and not text.startswith("//")):
        return None
    if (mistyped := _MISTYPED.fullmatch(text)) and (url := _correct_url(**mistyped.groupdict())) is not None:
        return url
    if _ADDRESS_6.fullmatch(text):
        return f"http://[{text}]:{_PORT}"
    if found := _HOST_AND_PORT.fullmatch(text):
        host = found["host"].rpartition("@")[2] or "localhost"
        return f"http://{host}:{found['port']}{found['path'] or ''}"
    return f"http://{text}:{_PORT}" if _HOST.fullmatch(text) else None


def _correct_url(scheme: str, mark: str, rest: str) -> str | None:
    """Return the correct form of a mistyped URL, or None if the text is not a URL."""
    rest = rest.lstrip("/")
    known = scheme.lower() if scheme.lower() in SCHEMES else None
    # Without a slash, as in `a:b`, only a correctly spelled scheme makes the text a URL.
    if known is None and "/" in mark:
        known = _closest(scheme, 0.8)
    if known is not None:
        return f"{known}:{'///' if known == 'file' else '//'}{rest}"
    # A colon before the slash makes it a URL, here probably one without its scheme.
    return f"http://{scheme}/{rest}" if mark.startswith(":/") else None


def _closest(scheme: str, cutoff: float) -> str | None:
    """Return the known scheme that is most similar, if any is at least `cutoff` (0 to 1) alike."""
    return next(iter(get_close_matches(scheme.strip().lower(), SCHEMES, n=1, cutoff=cutoff)), None)


def _unknown_scheme(scheme: str, rest: str, field: str) -> InvalidArgument:
    close = _closest(scheme, 0.6)
    hint = f"did you mean {close}://{_shown(rest)}? Give" if close else "give"
    return InvalidArgument(f"{_shown(scheme)}:// is not a scheme this version knows: {hint} {_ACCEPTED}", field=field)


def _shown(text: str) -> str:
    """Return the text shortened for an error, without a user name and a password."""
    before, has_user, after = text.rpartition("@")
    if has_user:
        start = before.partition("://")
        text = f"{start[0]}://…@{after}" if start[1] else f"…@{after}"
    return text[:_SHOWN]
