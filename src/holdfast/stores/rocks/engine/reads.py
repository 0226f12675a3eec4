"""Reads of an open store: RocksDB, and over it the layers of changes that RocksDB does not have yet."""

from collections.abc import Iterator, Sequence
from heapq import merge
from pathlib import Path
from typing import Any

from rocksdict import Rdict, RdictIter, ReadOptions

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.layers import MISSING, FamilyLayer, Layer, NotInLayer, Value
from holdfast.stores.rocks.hot_prefixes import READ_GAP, PrefixSamples
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.log.segments import read_part
from holdfast.stores.rocks.queues.plain_messages import FAMILIES as MESSAGE_FAMILIES


class MergedReads:
    """The merged view of an open RocksDB and the layers over it.

    A key is read from the first layer that changes it, or else from RocksDB. A scan keeps the layers that existed when
    it began, so a checkpoint in between takes nothing from it. It may or may not see later commits.
    """

    path: Path

    def __init__(self) -> None:
        self._db: Rdict | None = None
        # RocksDB's families, by number.
        self._families: list[Rdict] = []
        # The layers, the uppermost first.
        self._layers: tuple[Layer, ...] = ()
        self.read_samples = PrefixSamples(READ_GAP)
        self._closed_error = StoreUnavailable("this store was closed: open it again")

    def _use(self, database: Rdict) -> None:
        self._db = database
        self._families = [database, *map(database.get_column_family, keys.FAMILY_NAMES[1:])]

    # --- One key -----------------------------------------------------------------------------------------------

    def get(self, family: int, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none. Raise `StoreUnavailable` if it cannot be read."""
        samples = self.read_samples
        samples.left -= 1
        if samples.left < 0:
            samples.note_read(family, key)
        found = self._find(family, key)
        if not isinstance(found, NotInLayer):
            return None if found is None else self._load(found)
        try:
            value: bytes | None = self._family(family).get(key)
        except Exception as error:
            raise self._make_read_error(error) from None
        return value

    def get_many(self, family: int, wanted: list[bytes]) -> list[bytes | None]:
        """Return the value of each key, in order; None for a missing one."""
        samples = self.read_samples
        samples.left -= 1
        if samples.left < 0 and wanted:
            # The other keys belong to the same queue in nearly all calls.
            samples.note_read(family, wanted[0], len(wanted))
        values: list[bytes | None] = []
        missing: list[int] = []
        for index, key in enumerate(wanted):
            found = self._find(family, key)
            if isinstance(found, NotInLayer):
                missing.append(index)
                values.append(None)
            else:
                values.append(None if found is None else self._load(found))
        if missing:
            rocks: Any = self._family(family)  # the stub's list is invariant
            try:
                read = rocks.get([wanted[index] for index in missing])
            except Exception as error:
                raise self._make_read_error(error) from None
            for index, value in zip(missing, read, strict=True):
                values[index] = value
        return values

    def get_uncached(self, family: int, key: bytes) -> bytes | None:
        """Return a large value that is read once, like `get`, without putting it into RocksDB's cache."""
        samples = self.read_samples
        samples.left -= 1
        if samples.left < 0:
            samples.note_read(family, key)
        found = self._find(family, key)
        if not isinstance(found, NotInLayer):
            return None if found is None else self._load(found)
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]  # the stub leaves its argument out
        try:
            value: bytes | None = self._family(family).get(key, read_opt=options)
        except Exception as error:
            raise self._make_read_error(error) from None
        return value

    def _load(self, value: Value) -> bytes:
        """Return a value, read from the log if it is there."""
        if isinstance(value, bytes):
            return value
        try:
            return read_part(self.path / LOG, *value)
        except OSError as error:
            raise self._make_read_error(error) from None

    def _find(self, family: int, key: bytes) -> Value | NotInLayer | None:
        for layer in self._layers:
            if layer.keyless and family in MESSAGE_FAMILIES and len(key) >= keys.ID_SIZE:
                layer.make_keys(keys.parse_id(key[-keys.ID_SIZE :]))
            found = layer.families[family].get(key)
            if found is not MISSING:
                return found
        return MISSING

    # --- Ranges ------------------------------------------------------------------------------------------------

    def floor(self, family: int, key: bytes) -> bytes | None:
        """Return the last key at or before this one; None if there is none."""
        samples = self.read_samples
        samples.left -= 1
        if samples.left < 0:
            samples.note_read(family, key)
        layers = self._layers_of_family(family)
        last: bytes | None = None
        for number, layer in enumerate(layers):
            for changed in layer.keys_down(key):
                if last is not None and changed <= last:
                    break
                if _find_value(layers[: number + 1], changed) is not None:
                    last = changed
                    break
        cursor = self._family(family).iter()
        cursor.seek_for_prev(key)
        while cursor.valid() and (last is None or cursor.key() > last):
            found = cursor.key()
            if not layers or _find_value(layers, found) is MISSING:
                last = found
                break
            cursor.prev()
        error = self._find_error(cursor)
        del cursor  # a traceback that refers to the cursor would keep the directory locked
        if error is not None:
            raise error
        return last

    def items(self, family: int, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys from `lower` to before `upper` in order, with their values."""
        samples = self.read_samples
        samples.left -= 1
        if samples.left < 0:
            samples.note_read(family, lower)
        layers = self._layers_with(family, lower, upper)
        if not layers:
            yield from self._rocks_items(family, lower, upper)
            return
        for key, value in self._merge(layers, self._rocks_items(family, lower, upper), lower, upper):
            yield key, self._load(value)

    def scan(self, family: int, lower: bytes, upper: bytes) -> Iterator[bytes]:
        """Yield the same keys as `items`, without their values."""
        samples = self.read_samples
        samples.left -= 1
        if samples.left < 0:
            samples.note_read(family, lower)
        layers = self._layers_with(family, lower, upper)
        if not layers:
            yield from self._rocks_keys(family, lower, upper)
            return
        keys_alone = ((key, b"") for key in self._rocks_keys(family, lower, upper))
        for key, _ in self._merge(layers, keys_alone, lower, upper):
            yield key

    def _merge(
        self, layers: list[FamilyLayer], rocks: Iterator[tuple[bytes, bytes]], lower: bytes, upper: bytes
    ) -> Iterator[tuple[bytes, Value]]:
        """Yield the keys of the layers and RocksDB in order, with their values."""
        stored = next(rocks, None)
        for key in _changed_keys(layers, lower, upper):
            while stored is not None and stored[0] < key:
                if _find_value(layers, stored[0]) is MISSING:
                    yield stored
                stored = next(rocks, None)
            if stored is not None and stored[0] == key:
                stored = next(rocks, None)
            value = _find_value(layers, key)
            if value is not None and not isinstance(value, NotInLayer):
                yield key, value
        while stored is not None:
            if _find_value(layers, stored[0]) is MISSING:
                yield stored
            stored = next(rocks, None)

    def _layers_with(self, family: int, lower: bytes, upper: bytes) -> list[FamilyLayer]:
        """Return the layers of a family if any of them changes this range; otherwise none."""
        layers = self._layers_of_family(family)
        for layer in layers:
            if layer.ranges or next(layer.keys(lower, upper), None) is not None:
                return layers
        return []

    def _layers_of_family(self, family: int) -> list[FamilyLayer]:
        """Return the part of each layer for a family, after making all keys in this family."""
        for layer in self._layers:
            layer.make_keys_for(family)
        return [layer.families[family] for layer in self._layers]

    def _rocks_items(self, family: int, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._cursor(family, lower, upper)
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        error = self._find_error(cursor)
        del cursor
        if error is not None:
            raise error

    def _rocks_keys(self, family: int, lower: bytes, upper: bytes) -> Iterator[bytes]:
        cursor = self._cursor(family, lower, upper)
        while cursor.valid():
            yield cursor.key()
            cursor.next()
        error = self._find_error(cursor)
        del cursor
        if error is not None:
            raise error

    def _cursor(self, family: int, lower: bytes, upper: bytes) -> RdictIter:
        """Return a raw iterator. Only that distinguishes the end of a range from a damaged block."""
        options = ReadOptions()
        # The binding's lower bound would set the upper one, so the cursor seeks to the lower bound instead.
        options.set_iterate_upper_bound(upper)
        cursor = self._family(family).iter(options)
        cursor.seek(lower)
        return cursor

    # --- Errors ------------------------------------------------------------------------------------------------

    def _find_error(self, cursor: RdictIter) -> StoreUnavailable | None:
        """Return the error that ended a cursor early, if any. The cursor reports it only in its status."""
        try:
            cursor.status()
        except Exception as error:
            return self._make_read_error(error)
        return None

    def _make_read_error(self, error: Exception) -> StoreUnavailable:
        if isinstance(error, StoreUnavailable):
            return error
        return StoreUnavailable(
            f"{self.path} cannot be read: {error}; run `holdfast verify` on a copy, or restore a backup",
            path=str(self.path),
        )

    def _opened(self) -> Rdict:
        if self._db is None:
            raise self._closed_error.with_traceback(None)
        return self._db

    def _family(self, number: int) -> Rdict:
        self._opened()
        return self._families[number]


def _find_value(layers: Sequence[FamilyLayer], key: bytes) -> Value | NotInLayer | None:
    for layer in layers:
        found = layer.get(key)
        if found is not MISSING:
            return found
    return MISSING


def _changed_keys(layers: list[FamilyLayer], lower: bytes, upper: bytes) -> Iterator[bytes]:
    """Yield every key that a layer changes, in order and once."""
    last: bytes | None = None
    for key in merge(*(layer.keys(lower, upper) for layer in layers)):
        if key != last:
            last = key
            yield key
