"""The journal of a server, for readers that take it in ranges and as Arrow."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from holdfast.client.http.calls import HttpCalls, HttpRequest
from holdfast.client.http.failures import strange_answer
from holdfast.client.http.response import HttpReply
from holdfast.client.remote.settings import parse_settings
from holdfast.runtime import run_inline
from holdfast.wire.arrow import ARROW_STREAM, JOURNAL_COUNT, JOURNAL_NEXT


class JournalCalls:
    """Blocking. A page is bytes of an Arrow stream: what to make of them is the caller's."""

    def __init__(self, url: str, settings: Mapping[str, Any], tenant: str | None = None) -> None:
        self._tenant = tenant
        self._calls = HttpCalls(parse_settings(url, settings), in_threads=True)

    def count(self, after: str | None, limit: int, until: str | None) -> tuple[int, str]:
        """How many events lie behind the position, up to `limit`, and where they end."""
        answer = self._ask({"after": after, "limit": limit, "until": until, "count": 1}, b"")
        return int(answer.headers[JOURNAL_COUNT]), answer.headers[JOURNAL_NEXT].decode()

    def page(self, after: str | None, limit: int, until: str | None) -> tuple[bytes, str]:
        answer = self._ask({"after": after, "limit": limit, "until": until}, ARROW_STREAM)
        if answer.headers.get(b"content-type") != ARROW_STREAM:
            raise strange_answer(self._calls.url)
        return answer.body, answer.headers[JOURNAL_NEXT].decode()

    def _ask(self, fields: dict[str, str | int | None], accept: bytes) -> HttpReply:
        given = {name: value for name, value in {**fields, "tenant": self._tenant}.items() if value is not None}
        request = HttpRequest("GET", f"/v1/journal?{urlencode(given)}", [], accept=accept)
        answer = run_inline(self._calls.ask(request))
        if JOURNAL_NEXT not in answer.headers or JOURNAL_COUNT not in answer.headers:
            raise strange_answer(self._calls.url)
        return answer

    def close(self) -> None:
        run_inline(self._calls.close())
