"""Pages of other sites: a browser on the machine of a server would call it in their name, whoever wrote them.

Programs send none of these headers. There is no way for another site's page to be let in: no answer allows it.
"""

from collections.abc import Mapping

from holdfast.model.errors import Forbidden

_OWN_SITES = frozenset({b"same-origin", b"none"})


def check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Raise `Forbidden` for a request by a page that is not this server's own.

    A page counts as the server's own by the name that the request was sent to. Whether that name may be used at all
    is checked before, by `Hosts`.
    """
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is None and origin is None:
        return
    host = headers.get(b"host", b"").lower()
    is_own = (site is None or site in _OWN_SITES) and (origin is None or origin.lower().partition(b"://")[2] == host)
    if not is_own:
        raise Forbidden(
            "a page of another site may not call this server: call it from a program, or from its own pages"
        )
