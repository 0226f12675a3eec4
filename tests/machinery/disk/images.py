"""Disks as a power cut may leave them: what was synced is there, and of all else anything, in any order.

Of a directory, names that were not synced lead where they led at any time since. Of a file, each write since its last
sync is there or not, whole or in sectors, and the file is as long as any of them made it: what is missing in between
reads as zeros.
"""

import random
from enum import Enum, auto
from pathlib import Path

from holdfast.stores.rocks.recovery.marker import MARKER, read_boot_id
from tests.machinery.disk.trace import Change, Node, Trace

_SECTOR = 512
_PAGE = 4_096


class Loss(Enum):
    """Kinds of loss of bytes that were not synced."""

    NOTHING = auto()
    EVERYTHING = auto()
    TAIL = auto()  # written in order: the first so many are there, the next one torn
    PAGES = auto()  # pages go to disk when they like, each as it was at some moment
    SECTORS = auto()  # the same, and the disk tears them
    WRITES = auto()  # any subset of the writes, some of them torn


class Image:
    """One choice of what is there. The same dice make the same image."""

    def __init__(self, trace: Trace, cut: int, dice: random.Random) -> None:
        self._cut = cut
        self._dice = dice
        self.loss = dice.choice(list(Loss))
        # Most file systems keep a log of names and lose only the last of them.
        self._names_in_order = dice.random() < 0.5
        self.said = trace.said_before(cut)
        self._root = trace.root
        # A file of two names has one content.
        self._contents: dict[int, bytes] = {}

    def write_to(self, place: Path) -> None:
        self._write(self._root, place)

    def _write(self, node: Node, place: Path) -> None:
        if node.entries is None:
            if id(node) not in self._contents:
                self._contents[id(node)] = self._content(node)
            place.write_bytes(_in_another_boot(place.name, self._contents[id(node)]))
            return
        place.mkdir()
        for name, child in self._names(node).items():
            self._write(child, place / name)

    # --- Names -----------------------------------------------------------------------------------------------------

    def _names(self, directory: Node) -> dict[str, Node]:
        assert directory.entries is not None
        done = [entry for entry in directory.entries if entry.at < self._cut]
        lasting = directory.lasting(self._cut, [entry.at for entry in done])
        names: dict[str, Node] = {}
        for entry, is_there in zip(done, self._kept(lasting), strict=True):
            if not is_there:
                continue
            for name, node in entry.names:
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
        return names

    def _kept(self, lasting: list[bool]) -> list[bool]:
        match self.loss:
            case Loss.NOTHING:
                return [True] * len(lasting)
            case Loss.EVERYTHING:
                return lasting
        if self._names_in_order or self.loss is Loss.TAIL:
            least = len(lasting) - lasting[::-1].index(True) if True in lasting else 0
            most = self._dice.randint(least, len(lasting))
            return [number < most for number in range(len(lasting))]
        return [is_lasting or self._dice.random() < 0.5 for is_lasting in lasting]

    # --- Contents --------------------------------------------------------------------------------------------------

    def _content(self, file: Node) -> bytes:
        done = [change for change in file.changes if change.at < self._cut]
        lasting = file.lasting(self._cut, [change.at for change in done])
        content = bytearray()
        loose: list[Change] = []
        if self.loss is Loss.NOTHING:
            lasting = [True] * len(lasting)
        for number, (change, is_lasting) in enumerate(zip(done, lasting, strict=True)):
            if is_lasting:
                _apply(content, change)
            elif self.loss is not Loss.EVERYTHING:
                loose.append(change)
                if number + 1 == len(done) or lasting[number + 1]:
                    self._apply_loose(content, loose)
                    loose = []
        return bytes(content)

    def _apply_loose(self, content: bytearray, loose: list[Change]) -> None:
        sizes = [len(content)]
        for change in loose:
            sizes.append(change.offset if change.data is None else max(sizes[-1], change.offset + len(change.data)))
        match self.loss:
            case Loss.TAIL:
                count = self._dice.randint(0, len(loose))
                for change in loose[:count]:
                    _apply(content, change)
                if count < len(loose) and loose[count].data is not None:
                    self._apply_blocks(content, loose[count], _SECTOR, 0.5)
                return  # in order: the size says no more than is there
            case Loss.WRITES:
                for change in loose:
                    if self._dice.random() < 0.5:
                        self._apply_blocks(content, change, _SECTOR, self._dice.choice([1.0, 1.0, 0.5]))
            case Loss.PAGES | Loss.SECTORS:
                self._apply_by_block(content, loose, _PAGE if self.loss is Loss.PAGES else _SECTOR)
        # Longer than what is there, or cut back to an earlier size.
        if self._dice.random() < 0.5:
            _resize(content, self._dice.choice(sizes))

    def _apply_by_block(self, content: bytearray, loose: list[Change], block: int) -> None:
        """Each block as it was after some of the changes that touch it."""
        touching: dict[int, int] = {}
        for change in loose:
            for number in _blocks(change, block):
                touching[number] = touching.get(number, 0) + 1
        left = {number: self._dice.randint(0, count) for number, count in touching.items()}
        for change in loose:
            if change.data is None:
                if self._dice.random() < 0.5:
                    _apply(content, change)
                continue
            for number in _blocks(change, block):
                if left[number]:
                    left[number] -= 1
                    _apply(content, _part(change, number, block))

    def _apply_blocks(self, content: bytearray, change: Change, block: int, chance: float) -> None:
        if change.data is None:
            _apply(content, change)
            return
        for number in _blocks(change, block):
            if self._dice.random() < chance:
                _apply(content, _part(change, number, block))


def _in_another_boot(name: str, content: bytes) -> bytes:
    """Return a file as after a restart of the machine: the store's marker names another boot."""
    known = read_boot_id()
    return content if name != MARKER or known is None else content.replace(known.encode(), b"the boot before")


def _blocks(change: Change, block: int) -> range:
    if not change.data:
        return range(0)
    return range(change.offset // block, (change.offset + len(change.data) - 1) // block + 1)


def _part(change: Change, number: int, block: int) -> Change:
    """Return the part of a write that is in one block."""
    assert change.data is not None
    start = max(change.offset, number * block)
    end = min(change.offset + len(change.data), (number + 1) * block)
    return Change(change.at, start, change.data[start - change.offset : end - change.offset])


def _apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        _resize(content, change.offset)
        return
    if len(content) < change.offset:
        _resize(content, change.offset)
    content[change.offset : change.offset + len(change.data)] = change.data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
