"""Claims: what is due, in its order, under new leases."""

from holdfast.dice import Dice
from holdfast.model import lifecycle
from holdfast.model.errors import StoreUnavailable
from holdfast.model.lifecycle import is_over
from holdfast.model.requests import Ask
from holdfast.stores.answers import receipt_of
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.board import Board
from holdfast.stores.rocks.changes import Changes
from holdfast.stores.rocks.entries import Entries
from holdfast.stores.rocks.facts import Facts
from holdfast.stores.rocks.ledgers import Ledgers
from holdfast.stores.rocks.shelf import Entry, Shelf


class Claiming:
    def __init__(
        self, board: Board, changes: Changes, entries: Entries, ledgers: Ledgers, facts: Facts, dice: Dice
    ) -> None:
        self._board = board
        self._changes = changes
        self._entries = entries
        self._ledgers = ledgers
        self._facts = facts
        self._dice = dice

    def claim(self, shelf: Shelf, ask: Ask, now_ms: int) -> list[Entry]:
        taken = self._take_due(shelf, ask.limit, now_ms)
        if not taken:
            return []
        policy, facts = shelf.row.policy, self._facts
        for entry, token in zip(taken, self._dice.tokens(len(taken)), strict=True):
            change = lifecycle.claim(
                entry.life,
                policy,
                now_ms,
                token=token,
                lease_ms=ask.lease_ms,
                owner=ask.owner,
                ledger=ask.ledger,
                version_floor=facts.version_floor(entry.envelope.id),
            )
            self._changes.apply(shelf, entry, change, now_ms)
            self._entries.remember(entry)
        if ask.ledger is not None:
            self._ledgers.put(shelf, *ask.ledger, now_ms, [receipt_of(each.envelope, each.life) for each in taken])
        return taken

    def _take_due(self, shelf: Shelf, limit: int, now_ms: int) -> list[Entry]:
        """Due messages in the order of delivery, their keys taken out of the windows.

        On the way, entries without a Ready message behind them are dropped, and what the TTL has ended is ended.
        """
        taken: list[Entry] = []
        for priority in shelf.priorities():
            while len(taken) < limit and (candidates := shelf.pop_due(priority, limit - len(taken), now_ms)):
                entries = self._entries.load(shelf, [keys.parse_id(key[8:]) for key in candidates])
                for key, entry in zip(candidates, entries, strict=True):
                    if entry is None or not shelf.is_shown(entry, priority, key):
                        shelf.heal_visible(priority, key)
                    elif len(taken) >= limit:
                        shelf.show(priority, key)  # a group's batch took its place
                    elif is_over(entry.life, now_ms):
                        change = lifecycle.end_by_ttl(entry.life, shelf.row.policy, now_ms)
                        self._changes.apply(shelf, entry, change, now_ms)
                    elif entry.envelope.group is None:
                        taken.append(entry)
                    else:
                        taken += self._take_group(shelf, entry.envelope.group, limit - len(taken), now_ms)
        return taken

    def _take_group(self, shelf: Shelf, name: str, limit: int, now_ms: int) -> list[Entry]:
        """The group's oldest due messages: one batch, in order of id, up to the first that is not due."""
        taken: list[Entry] = []
        ids = [keys.parse_id(id16) for id16 in shelf.group_batch(name, limit)]
        for entry in self._entries.load(shelf, ids):
            if entry is None:
                raise StoreUnavailable(f"group {name!r} of {shelf.row.ref} names a message that is not there")
            if entry.life.visible_at > now_ms or not self._board.is_committed(entry):
                break
            if not is_over(entry.life, now_ms):
                taken.append(entry)
        return taken
