"""The order of the fields of a stored_item in a legacy database, inferred from its values.

All three fields are Data. So a value read in the wrong order decodes without an error, with another field as its
payload. Databases exist with several orders. The key of a value has its id, and a visibility key has a recognizable
form, so each value shows which orders fit. The order that fits the most values is taken.
"""

from collections.abc import Iterable
from itertools import combinations, permutations
from typing import NamedTuple

from holdfast.model.errors import InvalidArgument
from holdfast.stores.rocks.legacy.keys import VISIBILITY, id_in_index

# The Data fields of a stored_item, by position.
Fields = tuple[bytes, bytes, bytes]

# After this many values, a clear result is final. If it is not clear, all values are compared.
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
        """Return why a value cannot have this order, or None if it can. `id` is the id in its key; the value may lack
        one."""
        own = fields[self.id]
        if own and own != id:
            return f"its id is {own[:40].hex()}, not the one in its key"
        index_key = fields[self.index_key]
        if index_key and not index_key.startswith(VISIBILITY):
            return f"its visibility key does not begin with {VISIBILITY.decode()}"
        return None

    def _matches(self, fields: Fields, id: bytes) -> int:
        """Return the number of fields that confirm the order."""
        return (fields[self.id] == id) + (id_in_index(fields[self.index_key]) == id)

    def _arranged(self, fields: Fields) -> Fields:
        return fields[self.contents], fields[self.id], fields[self.index_key]


# The order of SPEC 4.7 comes first.
ORDERS = tuple(FieldOrder(*positions) for positions in permutations(range(3)))


def parse_order(text: str) -> FieldOrder:
    """Return the order with this text. Raise `InvalidArgument` if there is none."""
    for order in ORDERS:
        if str(order) == text:
            return order
    raise InvalidArgument(f"{text!r} is not an order of fields", field="order")


class FieldOrderChoice(NamedTuple):
    """The inferred order of a database."""

    # None: several orders fit equally well, and give the values different payloads.
    order: FieldOrder | None
    # The number of values compared, and the number of those that fit the order.
    compared: int
    fitting: int


def choose_order(values: Iterable[tuple[bytes, Fields]]) -> FieldOrderChoice:
    """Choose the order that contradicts the fewest values, and among equals the one that the most fields confirm.

    `values` has the id in each key and the fields of its value. If no order fits any value, the first order is chosen,
    and every value is unreadable.
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
    """Return whether the best order leads by enough that no further values need to be compared."""
    best = misfits.index(min(misfits))
    return all(
        misfits[number] >= misfits[best] + _SAMPLE // 2
        for number in range(len(misfits))
        if number != best and frozenset((best, number)) not in alike
    )
