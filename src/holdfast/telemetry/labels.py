"""Which queues have labels of their own.

Every label set costs memory here, in the scrape and in whatever keeps the metrics, so there is a cap on them. A queue
has a label set of its own from the first scrape that finds it in the store; whatever is asked of names that are no
queue, and of queues beyond the cap, is counted under `other`. So a caller that makes names up takes no label set from
anybody, and a queue that is deleted gives its own back.
"""

from collections.abc import Collection

from holdfast.model.errors import InvalidName
from holdfast.model.names import QueueRef, parse_ref

OTHER = QueueRef("other", "other")

# Names have up to 128 characters and stand in every line: long ones use up the cap sooner.
_NAME_BYTES_PER_SET = 48
# A latency takes a dozen lines where a count takes one: this share of the label sets has latencies of its own.
_DETAILED_SHARE = 5


class LabelSets:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left_bytes = limit * _NAME_BYTES_PER_SET
        self._granted: dict[QueueRef, str] = {}
        self._detailed: set[QueueRef] = set()
        # Named in requests since the last scrape, which will tell whether they are queues.
        self._asked: dict[QueueRef, None] = {}

    def __len__(self) -> int:
        return len(self._granted)

    def __contains__(self, ref: QueueRef) -> bool:
        return ref in self._granted

    def keeps(self, ref: QueueRef) -> bool:
        """Whether counts of this queue are to be kept apart; else they are `other`'s at once."""
        if ref in self._granted or ref in self._asked:
            return True
        if len(self._granted) >= self.limit or len(self._asked) >= self.limit or ref == OTHER:
            return False
        self._asked[ref] = None
        return True

    def text(self, ref: QueueRef | None) -> str:
        """The labels of a queue; of none, for what concerns no queue."""
        if ref is None:
            return _NONE
        return self._granted.get(ref, _OTHER)

    def latency_text(self, ref: QueueRef | None) -> str:
        return _OTHER if ref is not None and ref not in self._detailed else self.text(ref)

    def settle(self, queues: Collection[QueueRef] | None, *, is_complete: bool) -> list[QueueRef]:
        """Give label sets to the queues there are; those asked for come first. Answers the queues that lost theirs.

        `queues` None: nobody can say which there are, and whoever asks first is served first.
        """
        asked, self._asked = self._asked, {}
        lost = []
        if queues is not None and is_complete:
            lost = [ref for ref in self._granted if ref not in queues]
        for ref in lost:
            self._take_back(ref)
        for ref in (*(ref for ref in asked if queues is None or ref in queues), *(queues or ())):
            if len(self._granted) >= self.limit:
                break
            self._grant(ref)
        return lost

    def _grant(self, ref: QueueRef) -> None:
        size = len(ref.tenant) + len(ref.queue)
        if ref in self._granted or ref == OTHER or size > self._left_bytes or not _is_parsed(ref):
            return
        self._left_bytes -= size
        self._granted[ref] = _text(ref)
        if len(self._detailed) * _DETAILED_SHARE < self.limit:
            self._detailed.add(ref)

    def _take_back(self, ref: QueueRef) -> None:
        del self._granted[ref]
        self._detailed.discard(ref)
        self._left_bytes += len(ref.tenant) + len(ref.queue)


def _text(ref: QueueRef) -> str:
    """Names need no escaping: their grammar has no character that would."""
    return f'tenant="{ref.tenant}",queue="{ref.queue}"'


_OTHER = _text(OTHER)
_NONE = 'tenant="",queue=""'


def _is_parsed(ref: QueueRef) -> bool:
    """Names are parsed at the edge. Should a door ever forget to, this is where it would do harm."""
    try:
        parse_ref(ref.tenant, ref.queue)
    except InvalidName:
        return False
    return True
