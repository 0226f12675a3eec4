"""The indexes of the queues that need work when a store opens, so that it need not read all queues.

An entry is written in the commit that writes the queue's row. A store without the indexes gets them when it is first
opened, in one commit with a fact that records this (`_FILLED`), so a crash leaves both or neither.

How to change this format: after changing the rule of an index, rename the fact. Every store then fills its indexes
again.
"""

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.limits import is_limited
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.values import QueueRow

_FILLED = keys.META + b"queue indexes"

_decode_queue = msgspec.msgpack.Decoder(QueueRow).decode


class QueueIndexes:
    """The indexes of queues being deleted (`keys.DELETING`) and of queues with rate limits (`keys.LIMITED`), by
    prefix."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def fill_once(self) -> None:
        """Add the entries of all queues, unless that was done before. Must be part of a commit."""
        engine, database = self._engine, self._engine.database
        if database.get(keys.DIRECTORY, _FILLED) is not None:
            return
        wanted: set[bytes] = set()
        for _, raw in database.items(keys.DIRECTORY, keys.QUEUES, keys.after(keys.QUEUES)):
            wanted |= _entries(decode_row(raw))
        for space in (keys.DELETING, keys.LIMITED):
            for key in list(database.scan(keys.DIRECTORY, space, keys.after(space))):
                if key not in wanted:
                    engine.delete(key, keys.DIRECTORY)
        for key in wanted:
            engine.put(key, b"", keys.DIRECTORY)
        engine.put(_FILLED, b"", keys.DIRECTORY)

    def change(self, was: QueueRow | None, row: QueueRow | None) -> None:
        """Change the entries of a queue whose row changes from `was` to `row`. `was` is None for a new queue, `row` for
        a deleted one."""
        if was is not None and row is not None and was.policy is row.policy and was.drain_until == row.drain_until:
            return
        before = set() if was is None else _entries(was)
        after = set() if row is None else _entries(row)
        for key in before - after:
            self._engine.delete(key, keys.DIRECTORY)
        for key in after - before:
            self._engine.put(key, b"", keys.DIRECTORY)

    def prefixes(self, space: bytes) -> list[bytes]:
        """Return the prefixes of the queues in the index `space`."""
        found = self._engine.database.scan(keys.DIRECTORY, space, keys.after(space))
        return [key[len(space) :] for key in found]


def decode_row(raw: bytes) -> QueueRow:
    """Return the row with these stored bytes. Raise `StoreUnavailable` if they are damaged."""
    try:
        return _decode_queue(raw)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"the row of a queue is damaged ({error}): restore a backup") from None


def _entries(row: QueueRow) -> set[bytes]:
    entries: set[bytes] = set()
    if row.drain_until is not None:
        entries.add(keys.DELETING + keys.prefix(row.tenant_id, row.queue_id))
    if is_limited(row.policy):
        entries.add(keys.LIMITED + keys.prefix(row.tenant_id, row.queue_id))
    return entries
