"""The ports of a server: one for HTTP, and one for each other door whose port is configured.

Ports are bound before the store is opened, so that a port in use is reported at once. The doors listen on them after
that, so that early callers are refused instead of being kept waiting.
"""

import socket
from typing import Final, NamedTuple

from msgspec.structs import replace

from holdfast.model.errors import Unavailable
from holdfast.model.extras import require_extra
from holdfast.server.doors.listen import listening_sockets, url_of
from holdfast.server.settings import Settings

# By door: the setting that gives its port. HTTP always has one.
_SETTINGS: Final = {"http": "port", "capnp": "capnp_port", "framed": "framed_port"}
_SCHEMES: Final = {"http": ("http", "https"), "capnp": ("capnp", "capnps"), "framed": ("holdfast", "holdfasts")}


class Urls(NamedTuple):
    """The URLs at which the doors of a server listen."""

    http: str
    capnp: str | None
    framed: str | None

    def named(self, name: str) -> dict[str, str]:
        """Return the URLs of the doors beside HTTP as fields of a log line: the door's name, `_`, and `name`."""
        others = {"capnp": self.capnp, "framed": self.framed}
        return {f"{door}_{name}": url for door, url in others.items() if url is not None}


class Ports:
    """The bound sockets of all doors of a server."""

    def __init__(self, settings: Settings, *, is_shared: bool = False) -> None:
        """Bind the ports. Raise `Unavailable` for a port in use, and `InvalidArgument` for an unusable address.

        `is_shared`: other processes of this user may bind the same ports, and the system spreads new connections over
        the processes that listen.
        """
        self._settings = settings
        self.sockets: dict[str, list[socket.socket]] = {}
        # The numbers of the bound ports, by setting. They stay here after `close`.
        self.numbers: dict[str, int] = {}
        try:
            for door, setting in _SETTINGS.items():
                self._bind(door, setting, is_shared=is_shared)
        except BaseException:
            self.close()
            raise

    def _bind(self, door: str, setting: str, *, is_shared: bool) -> None:
        port = getattr(self._settings, setting)
        self.sockets[door] = []
        if port is None:
            return
        if door == "capnp":
            require_extra("capnp", "capnp_port", setting="capnp_port")
        try:
            self.sockets[door] = listening_sockets(replace(self._settings, port=port), is_shared=is_shared)
        except Unavailable as error:
            raise Unavailable(error.message.replace("--port", flag_of(setting))) from None
        self.numbers[setting] = self.sockets[door][0].getsockname()[1]

    def number(self, door: str) -> int | None:
        """Return the number of a door's port; None for a door without one."""
        return self.numbers.get(_SETTINGS[door])

    @property
    def urls(self) -> Urls:
        """The URLs of all doors."""
        return Urls(**{door: self._url(door) for door in _SETTINGS})  # type: ignore[arg-type]  # HTTP always has one

    def _url(self, door: str) -> str | None:
        sockets = self.sockets[door]
        if not sockets:
            return None
        scheme, rest = url_of(sockets, self._settings).split(":", 1)
        return f"{_SCHEMES[door][scheme == 'https']}:{rest}"

    def close(self) -> None:
        """Close all sockets."""
        for sockets in self.sockets.values():
            for each in sockets:
                each.close()


def setting_of(door: str) -> str:
    """Return the name of the setting that gives a door its port."""
    return _SETTINGS[door]


def flag_of(setting: str) -> str:
    """Return the flag of a setting."""
    return f"--{setting.replace('_', '-')}"
