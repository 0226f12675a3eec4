"""Blocking reads of a server's journal, as Arrow, for the pipeline."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from holdfast.client.http.calls import HttpCalls, HttpRequest
from holdfast.client.http.failures import unexpected_response
from holdfast.client.http.response import HttpReply
from holdfast.client.remote.settings import parse_settings
from holdfast.runtime import run_inline
from holdfast.wire.arrow import ARROW_STREAM, JOURNAL_COUNT, JOURNAL_NEXT


class JournalCalls:
    """The journal of a server. A page is the bytes of an Arrow stream, which the caller decodes."""

    def __init__(self, url: str, settings: Mapping[str, Any], tenant: str | None = None) -> None:
        self._tenant = tenant
        self._calls = HttpCalls(parse_settings(url, settings), in_threads=True)

    def count(self, after: str | None, limit: int, until: str | None) -> tuple[int, str]:
        """Return the number of events after the position, counted up to `limit`, and the position to continue from."""
        response = self._ask({"after": after, "limit": limit, "until": until, "count": 1}, b"")
        return int(response.headers[JOURNAL_COUNT]), response.headers[JOURNAL_NEXT].decode()

    def page(self, after: str | None, limit: int, until: str | None) -> tuple[bytes, str]:
        """Return up to `limit` events after the position as an Arrow stream, and the position to continue from."""
        response = self._ask({"after": after, "limit": limit, "until": until}, ARROW_STREAM)
        if response.headers.get(b"content-type") != ARROW_STREAM:
            raise unexpected_response(self._calls.url)
        return response.body, response.headers[JOURNAL_NEXT].decode()

    def _ask(self, fields: dict[str, str | int | None], accept: bytes) -> HttpReply:
        given = {name: value for name, value in {**fields, "tenant": self._tenant}.items() if value is not None}
        request = HttpRequest("GET", f"/v1/journal?{urlencode(given)}", [], accept=accept)
        response = run_inline(self._calls.send(request))
        if JOURNAL_NEXT not in response.headers or JOURNAL_COUNT not in response.headers:
            raise unexpected_response(self._calls.url)
        return response

    def close(self) -> None:
        run_inline(self._calls.close())
