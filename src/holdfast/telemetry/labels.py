"""The label sets of queues in metrics.

Every label set needs memory here, in each scrape and in the database of the metrics, so their number is limited. A
queue gets a label set at the first scrape that finds it in the store, and loses it when it is deleted. Requests to
queues that do not exist, and to queues beyond the limit, are counted under `other`, so a caller that invents names
cannot use label sets up.

The labels are the names of tenant and queue, or their numbers.
"""

from collections.abc import Mapping
from enum import StrEnum

from holdfast.model.errors import InvalidName
from holdfast.model.names import QueueNumbers, QueueRef, parse_ref

OTHER = QueueRef("other", "other")

# Names have up to 128 characters and are in every line. The total length is limited too, by this average per label set.
_NAME_BYTES_PER_SET = 48
# A latency takes a dozen lines, a count one. Only one in this number of label sets has latencies of its own.
_DETAILED_SHARE = 5


class MetricsNames(StrEnum):
    """The ways to name tenants and queues in metrics."""

    NAMES = "names"
    IDS = "ids"


class LabelSets:
    """The queues that have labels of their own, at most `limit`."""

    def __init__(self, limit: int, names: MetricsNames = MetricsNames.NAMES) -> None:
        self.limit = limit
        self._names = names
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

    def update(self, queues: Mapping[QueueRef, QueueNumbers] | None, *, is_complete: bool) -> list[QueueRef]:
        """Give label sets to the queues of a scrape, first to those with requests. Return the queues that lost theirs.

        With numbers as labels, a queue that was deleted and made again loses the old label set and gets a new one.

        Args:
            queues: The queues that exist. None if that is unknown: then any name in a request gets a label set, unless
                the labels are numbers.
            is_complete: False if there may be more queues. Then no queue that is missing loses its label set.
        """
        candidates, self._candidates = self._candidates, {}
        known = {} if queues is None else queues
        lost = []
        if queues is not None:
            lost = [
                ref for ref, text in self._granted.items() if self._is_lost(text, ref, known, is_complete=is_complete)
            ]
        for ref in lost:
            self._revoke(ref)
        for ref in (*(ref for ref in candidates if queues is None or ref in queues), *known):
            if len(self._granted) >= self.limit:
                break
            self._grant(ref, known.get(ref))
        return lost

    def _is_lost(self, text: str, ref: QueueRef, queues: Mapping[QueueRef, QueueNumbers], *, is_complete: bool) -> bool:
        numbers = queues.get(ref)
        return is_complete if numbers is None else text != self._text(ref, numbers)

    def _text(self, ref: QueueRef, numbers: QueueNumbers | None) -> str | None:
        """Return the labels of a queue; None if they are its numbers and these are not known."""
        if self._names is MetricsNames.NAMES:
            return _text(*ref)
        return None if numbers is None else _text(*map(str, numbers))

    def _grant(self, ref: QueueRef, numbers: QueueNumbers | None) -> None:
        size = len(ref.tenant) + len(ref.queue)
        if ref in self._granted or ref == OTHER or size > self._left_bytes or not _is_valid(ref):
            return
        text = self._text(ref, numbers)
        if text is None:
            return
        self._left_bytes -= size
        self._granted[ref] = text
        if len(self._detailed) * _DETAILED_SHARE < self.limit:
            self._detailed.add(ref)

    def _revoke(self, ref: QueueRef) -> None:
        del self._granted[ref]
        self._detailed.discard(ref)
        self._left_bytes += len(ref.tenant) + len(ref.queue)


def _text(tenant: str, queue: str) -> str:
    """Return the text of the labels. Names cannot contain a character that needs escaping."""
    return f'tenant="{tenant}",queue="{queue}"'


_OTHER = _text(*OTHER)
_NONE = 'tenant="",queue=""'


def _is_valid(ref: QueueRef) -> bool:
    """Return whether the names are valid. Doors check them; a missed check would corrupt the text of a scrape."""
    try:
        parse_ref(ref.tenant, ref.queue)
    except InvalidName:
        return False
    return True
