"""The contents of a legacy database and of its copy: messages by state, a hash of them, and other keys."""

from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from holdfast.model.answers import Found
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import State
from holdfast.model.requests import EVERYTHING
from holdfast.stores.rocks.legacy.entries import LegacyMessage, Oddity
from holdfast.stores.rocks.legacy.legacy_database import LegacyDatabase
from holdfast.stores.rocks.legacy.message_import import LEGACY_QUEUE, old_id
from holdfast.stores.rocks.store import RocksStore

_EXAMPLES = 5
_SHOWN_KEY_BYTES = 60
_STEP = 1_000
_MODULUS = 1 << 256


class Sum(NamedTuple):
    """Messages by state, and a hash of all ids, states and payloads that does not depend on their order."""

    ready: int
    in_flight: int
    digest: str

    @property
    def messages(self) -> int:
        """Return the number of all messages."""
        return self.ready + self.in_flight


class SumBuilder:
    """The computation of a `Sum`, message by message."""

    def __init__(self) -> None:
        self._counts = Counter[bool]()
        self._digest = 0

    def add(self, id: bytes, payload: bytes, *, is_held: bool) -> None:
        """Add a message. `is_held` says that it is in flight."""
        head = len(id).to_bytes(4, "big") + id + bytes([is_held])
        self._counts[is_held] += 1
        self._digest = (self._digest + int.from_bytes(sha256(head + payload).digest(), "big")) % _MODULUS

    @property
    def sum(self) -> Sum:
        """Return the sum of the messages added so far."""
        return Sum(self._counts[False], self._counts[True], f"{self._digest:064x}")


class Survey(NamedTuple):
    """The result of a survey."""

    path: Path
    # The order of the fields of its values.
    order: str
    sum: Sum
    # The numbers of keys that are not messages, by kind.
    oddities: dict[str, int]
    unreadable: int
    # Some of the unreadable keys, each with the reason.
    examples: list[str]


def survey(database: LegacyDatabase, now_ms: int, progress: Callable[[int], None] = lambda done: None) -> Survey:
    """Read the whole database. A message whose lease ends after `now_ms` is in flight.

    `progress` is called with the number of keys read so far.
    """
    messages, oddities, examples, unreadable = SumBuilder(), Counter[str](), list[str](), 0
    for number, (_, found) in enumerate(database.read()):
        if number % _STEP == 0:
            progress(number)
        if isinstance(found, LegacyMessage):
            messages.add(found.id, found.payload, is_held=found.is_held(now_ms))
        elif found is not None:
            oddities[found.kind.value] += 1
            unreadable += found.is_unreadable
            if found.is_unreadable and len(examples) < _EXAMPLES:
                examples.append(describe_oddity(found))
    return Survey(database.path, str(database.order), messages.sum, dict(oddities), unreadable, examples)


async def sum_store(store: RocksStore, now_ms: int, progress: Callable[[int], None]) -> Sum:
    """Return the sum of all messages that were imported into the store, under their old ids."""
    messages, after = SumBuilder(), None
    if await store.directory.find_queue(LEGACY_QUEUE) is None:
        return messages.sum
    while True:
        listing = await store.browse(LEGACY_QUEUE, None, EVERYTHING, after, _STEP, now_ms)
        for found in listing.found:
            id = old_id(found.envelope.id, found.envelope.headers)
            is_held = found.life.state is State.IN_FLIGHT
            messages.add(id, await _payload_of(store, found), is_held=is_held)
        progress(messages.sum.messages)
        after = listing.after
        if after is None:
            return messages.sum


async def _payload_of(store: RocksStore, found: Found) -> bytes:
    envelope = found.envelope
    if envelope.pieces is None:
        return envelope.payload
    reader = await store.payloads.read(LEGACY_QUEUE, envelope.id, envelope.pieces)
    return b"".join([part async for part in reader])


def require_readable(found: Survey, accepted: int, what_then: str) -> None:
    """Raise `InvalidArgument` unless exactly `accepted` keys or values are unreadable.

    `what_then` is the part of the error text that says what happens to unreadable keys once they are accepted.
    """
    if found.unreadable == accepted:
        return
    text = f"{found.path}: {found.unreadable:,} keys or values cannot be read, and {found.sum.messages:,} messages can"
    if accepted:
        text += f"; --accept-unreadable {accepted} is a different number"
    if found.examples:
        text += f" (fields in the order {found.order}). For example: {'; '.join(found.examples)}"
    text += ". Nothing was changed. "
    if found.unreadable:
        text += f"If you do not need them, give --accept-unreadable {found.unreadable}: {what_then}"
    else:
        text += "Leave out --accept-unreadable"
    raise InvalidArgument(
        text, field="accept_unreadable", path=str(found.path), unreadable=found.unreadable, examples=found.examples
    )


def describe_oddity(oddity: Oddity) -> str:
    """Return a key and the reason why it is no message, for an error text."""
    key = oddity.key[:_SHOWN_KEY_BYTES].decode("ascii", "backslashreplace")
    return f"{key}{'…' if len(oddity.key) > _SHOWN_KEY_BYTES else ''} ({oddity.why})"
