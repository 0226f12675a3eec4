"""The label sets of queues in metrics.

Every label set needs memory here, in each scrape and in the database of the metrics, so their number is limited. A
queue gets a label set at the first scrape that finds it in the store, and loses it when it is deleted. Requests to
queues that do not exist, and to queues beyond the limit, are counted under `other`, so a caller that invents names
cannot use label sets up.
"""

from collections.abc import Collection

from holdfast.model.errors import InvalidName
from holdfast.model.names import QueueRef, parse_ref

OTHER = QueueRef("other", "other")

# Names have up to 128 characters and are in every line. The total length is limited too, by this average per label set.
_NAME_BYTES_PER_SET = 48
# A latency takes a dozen lines, a count one. Only one in this number of label sets has latencies of its own.
_DETAILED_SHARE = 5


class LabelSets:
    """The queues that have labels of their own, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left_bytes = limit * _NAME_BYTES_PER_SET
        self._granted: dict[QueueRef, str] = {}
        self._detailed: set[QueueRef] = set()
        # The names in requests since the last scrape. The next scrape finds out whether these queues exist.
        self._candidates: dict[QueueRef, None] = {}

    def __len__(self) -> int:
        return len(self._granted)

    def __contains__(self, ref: QueueRef) -> bool:
        return ref in self._granted

    def keeps(self, ref: QueueRef) -> bool:
        """Return whether to count this queue by itself; otherwise count it as `other`."""
        if ref in self._granted or ref in self._candidates:
            return True
        if len(self._granted) >= self.limit or len(self._candidates) >= self.limit or ref == OTHER:
            return False
        self._candidates[ref] = None
        return True

    def text(self, ref: QueueRef | None) -> str:
        """Return the labels for counts of a queue. None is for requests that concern no queue."""
        if ref is None:
            return _NONE
        return self._granted.get(ref, _OTHER)

    def latency_text(self, ref: QueueRef | None) -> str:
        """Return the labels for latencies of a queue."""
        return _OTHER if ref is not None and ref not in self._detailed else self.text(ref)

    def update(self, queues: Collection[QueueRef] | None, *, is_complete: bool) -> list[QueueRef]:
        """Give label sets to the queues of a scrape, first to those with requests. Return the queues that lost theirs.

        Args:
            queues: The queues that exist. None if that is unknown: then any name in a request gets a label set.
            is_complete: False if there may be more queues. Then no queue loses its label set.
        """
        candidates, self._candidates = self._candidates, {}
        lost = []
        if queues is not None and is_complete:
            lost = [ref for ref in self._granted if ref not in queues]
        for ref in lost:
            self._revoke(ref)
        for ref in (*(ref for ref in candidates if queues is None or ref in queues), *(queues or ())):
            if len(self._granted) >= self.limit:
                break
            self._grant(ref)
        return lost

    def _grant(self, ref: QueueRef) -> None:
        size = len(ref.tenant) + len(ref.queue)
        if ref in self._granted or ref == OTHER or size > self._left_bytes or not _is_valid(ref):
            return
        self._left_bytes -= size
        self._granted[ref] = _text(ref)
        if len(self._detailed) * _DETAILED_SHARE < self.limit:
            self._detailed.add(ref)

    def _revoke(self, ref: QueueRef) -> None:
        del self._granted[ref]
        self._detailed.discard(ref)
        self._left_bytes += len(ref.tenant) + len(ref.queue)


def _text(ref: QueueRef) -> str:
    """Return the text of the labels. Names cannot contain a character that needs escaping."""
    return f'tenant="{ref.tenant}",queue="{ref.queue}"'


_OTHER = _text(OTHER)
_NONE = 'tenant="",queue=""'


def _is_valid(ref: QueueRef) -> bool:
    """Return whether the names are valid. Doors check them; a missed check would corrupt the text of a scrape."""
    try:
        parse_ref(ref.tenant, ref.queue)
    except InvalidName:
        return False
    return True
