"""The division of a store's shards among processes."""

from typing import NamedTuple


class Portion(NamedTuple):
    """One of several portions: every shard whose number, modulo `portions`, is `number`. The first one is number 0."""

    number: int
    portions: int

    @property
    def is_first(self) -> bool:
        """Return whether this is the portion with the first shard, and with the rows of tenants."""
        return self.number == 0

    def shards(self, total: int) -> tuple[int, ...]:
        """Return the numbers of its shards, of `total`."""
        return tuple(range(self.number, total, self.portions))


def portion_of(shard: int, portions: int) -> int:
    """Return the number of the portion with a shard."""
    return shard % portions
