"""Pages of other sites: a browser on the machine of a server would call it in their name, whoever wrote them.

Programs send none of these headers. There is no way for another site's page to be let in: no answer allows it.
"""

from collections.abc import Mapping
from ipaddress import ip_address

from holdfast.model.errors import Forbidden

_OWN_SITES = frozenset({b"same-origin", b"none"})


def check_origin(headers: Mapping[bytes, bytes], *, is_open: bool) -> None:
    """`Forbidden` to a page that is not this server's own. `is_open`: whoever reaches the server may do everything."""
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is None and origin is None:
        return
    host = headers.get(b"host", b"").lower()
    is_own = (site is None or site in _OWN_SITES) and (origin is None or origin.lower().partition(b"://")[2] == host)
    # A name that its owner points at this machine makes a page there look like one of ours.
    if not is_own or (is_open and not _is_loopback(host)):
        raise Forbidden(
            "a page of another site may not call this server: call it from a program, or from its own pages"
        )


def _is_loopback(host: bytes) -> bool:
    name = host.decode("latin-1").rpartition("]")[0].lstrip("[") or host.decode("latin-1").partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
