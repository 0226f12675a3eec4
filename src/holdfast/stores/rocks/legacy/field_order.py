"""The order of a stored_item's fields in a legacy database, found out from its values.

The three fields are all Data, so a message read in the wrong order decodes without an error, with another field for its
payload. Databases exist with several orders. The key of a value names its id, and a visibility key has a form of its
own: the order in which the most values agree with both is the database's.
"""

from collections.abc import Iterable
from itertools import combinations, permutations
from typing import NamedTuple

from holdfast.stores.rocks.legacy.keys import VISIBILITY, id_in_index

# The Data fields of a stored_item, by position.
Fields = tuple[bytes, bytes, bytes]

# Once this many values have been compared, a clear result is final; until then, and while it is close, all are.
_SAMPLE = 1_000


class FieldOrder(NamedTuple):
    """The position of each field of a stored_item."""

    contents: int
    id: int
    index_key: int

    def __str__(self) -> str:
        names = sorted(zip(self, ("contents", "id", "visibility_ts_index_key"), strict=True))
        return ", ".join(name for _, name in names)

    def misfit(self, fields: Fields, id: bytes) -> str | None:
        """Return why a value cannot have this order, or None. `id` is the one in its key; a value may leave it out."""
        own = fields[self.id]
        if own and own != id:
            return f"its id is {own[:40].hex()}, not its key's"
        index_key = fields[self.index_key]
        if index_key and not index_key.startswith(VISIBILITY):
            return f"its visibility key does not begin with {VISIBILITY.decode()}"
        return None

    def _matches(self, fields: Fields, id: bytes) -> int:
        """Return how many fields confirm the order."""
        return (fields[self.id] == id) + (id_in_index(fields[self.index_key]) == id)

    def _arranged(self, fields: Fields) -> Fields:
        return fields[self.contents], fields[self.id], fields[self.index_key]


# The order of SPEC 4.7 comes first.
ORDERS = tuple(FieldOrder(*positions) for positions in permutations(range(3)))


class FieldOrderChoice(NamedTuple):
    """The order of a database. `order` is None if several orders fit equally well and disagree about payloads."""

    order: FieldOrder | None
    # Values compared, and how many of them fit the order.
    compared: int
    fitting: int


def choose_order(values: Iterable[tuple[bytes, Fields]]) -> FieldOrderChoice:
    """Choose the order that contradicts the fewest values; among equals, the one that most fields confirm.

    `values`: the id of each key and the fields of its value. If no order fits any value, the first is returned: every
    value is then unreadable.
    """
    misfits, matches = [0] * len(ORDERS), [0] * len(ORDERS)
    alike = {frozenset(pair) for pair in combinations(range(len(ORDERS)), 2)}
    compared = 0
    for id, fields in values:
        compared += 1
        for number, order in enumerate(ORDERS):
            if order.misfit(fields, id) is None:
                matches[number] += order._matches(fields, id)
            else:
                misfits[number] += 1
        alike = {pair for pair in alike if len({ORDERS[number]._arranged(fields) for number in pair}) == 1}
        if compared == _SAMPLE and _is_clear(misfits, alike):
            break
    best = min(range(len(ORDERS)), key=lambda number: (misfits[number], -matches[number]))
    fitting = compared - misfits[best]
    rivals = (
        number
        for number in range(len(ORDERS))
        if (misfits[number], matches[number]) == (misfits[best], matches[best]) and number != best
    )
    is_ambiguous = fitting > 0 and any(frozenset((best, rival)) not in alike for rival in rivals)
    return FieldOrderChoice(None if is_ambiguous else ORDERS[best], compared, fitting)


def _is_clear(misfits: list[int], alike: set[frozenset[int]]) -> bool:
    """Return whether the best order leads by so much that further values need not be compared."""
    best = misfits.index(min(misfits))
    return all(
        misfits[number] >= misfits[best] + _SAMPLE // 2
        for number in range(len(misfits))
        if number != best and frozenset((best, number)) not in alike
    )
