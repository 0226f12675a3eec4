"""Check the `Host` of a request against the names that a server may be called by.

A page of another site can make its own name resolve to 127.0.0.1, and so make a browser on this machine call a server
there (DNS rebinding). The browser sends that name as `Host` and treats the response as one of the page's own site. A
server without authentication therefore accepts only names that no other site controls.
"""

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from holdfast.model.errors import Forbidden

HOST = b"host"
# In `allowed_hosts`: accept every name.
ANY_HOST = "*"

# RFC 9110, 7.2: a registered name or an address, and an optional port. With http and https the name must not be empty.
_VALID = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{0,5})?", re.ASCII)
_TARGET = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_MAX_ACCEPTED = 64


def is_valid_host(value: bytes) -> bool:
    """Return whether a `Host` header is a name or an address with an optional port."""
    return _VALID.fullmatch(value) is not None


def is_target_of(target: bytes, host: bytes) -> bool:
    """Return whether a request target in absolute form (`http://name/path`) names the same host as `host`."""
    authority = _TARGET.match(target)
    return authority is not None and is_valid_host(authority[1]) and _name_in(authority[1]) == _name_in(host)


def normalise_name(name: str) -> str:
    """Return the canonical form of a name or an address. An IPv6 address loses its brackets."""
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name.lower().removesuffix(".")
    try:
        return str(ip_address(bare))
    except ValueError:
        return bare


class Hosts:
    """The names that a server may be called by: loopback addresses, `localhost` and the given names."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset({"localhost", *map(normalise_name, names)})
        # Accepted headers as they were sent, so that the next request of the same caller needs only a look-up. Bounded,
        # because 127.0.0.0/8 with its ports has millions of spellings.
        self.accepted: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `Forbidden` unless the request's `Host` is one of these names."""
        host = headers.get(HOST, b"")
        if host in self.accepted:
            return
        if not self._is_allowed(host):
            given = f"Host {host[:255].decode('ascii', 'replace')!r}" if host else "a request without Host"
            raise Forbidden(
                f"{given} is not allowed: this server accepts loopback addresses, localhost and the names in "
                "allowed_hosts; call it by http://127.0.0.1, or add the name to the server's setting allowed_hosts"
            )
        if len(self.accepted) >= _MAX_ACCEPTED:
            self.accepted.clear()
        self.accepted.add(host)

    def _is_allowed(self, host: bytes) -> bool:
        # Checked here too, because the request may come from another ASGI server, which may not have checked it.
        if not is_valid_host(host):
            return False
        name = _name_in(host)
        return name in self._names or _is_loopback(name)


def _name_in(host: bytes) -> str:
    """Return the name in a valid `Host`, without the port."""
    text = host.decode("ascii")
    return normalise_name(text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0])


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
