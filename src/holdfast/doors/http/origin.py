"""Refuse requests that a browser sends for pages of other sites.

Any web page could otherwise call a server on the machine of the person who views it. Programs do not send the headers
that are checked here. Pages of other sites cannot be allowed: no response has CORS headers.
"""

from collections.abc import Mapping

from holdfast.model.errors import Forbidden

_OWN_SITES = frozenset({b"same-origin", b"none"})


def check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Raise `Forbidden` for a request from a page that is not this server's own.

    A page is the server's own if its origin is the host that the request was sent to. `Hosts` has already checked that
    this host is allowed.
    """
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is None and origin is None:
        return
    host = headers.get(b"host", b"").lower()
    is_own = (site is None or site in _OWN_SITES) and (origin is None or origin.lower().partition(b"://")[2] == host)
    if not is_own:
        raise Forbidden("pages of other sites may not call this server; call it from a program or from its own pages")
