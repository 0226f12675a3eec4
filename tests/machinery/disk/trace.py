"""A trace of the shim, read: files and directories with all that was done to them, in order."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("=IIIIQQ")


class Kind(IntEnum):
    """The numbers are shim.c's."""

    WRITE = 1
    SYNC_BEGINS = 2
    SYNC_ENDS = 3
    SYNC_FAILS = 4
    CREATE = 5
    TRUNCATE = 6
    RENAME = 7
    UNLINK = 8
    MKDIR = 9
    LINK = 10
    MARK = 11


class Record(NamedTuple):
    kind: Kind
    path: str
    other: str
    inode: int
    number: int
    data: bytes


def read_records(path: Path) -> Iterator[Record]:
    raw, at = path.read_bytes(), 0
    while at < len(raw):
        kind, path_size, other_size, data_size, inode, number = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        ends = at + path_size, at + path_size + other_size, at + path_size + other_size + data_size
        yield Record(
            Kind(kind),
            raw[at : ends[0]].decode(),
            raw[ends[0] : ends[1]].decode(),
            inode,
            number,
            raw[ends[1] : ends[2]],
        )
        at = ends[2]


class Change(NamedTuple):
    """A change of a file: bytes at an offset, or (without any) a new size."""

    at: int
    offset: int
    data: bytes | None


class Entry(NamedTuple):
    """A change of a directory: names that now lead to other nodes, or to none. All of them change, or none."""

    at: int
    names: tuple[tuple[str, "Node | None"], ...]


class Sync(NamedTuple):
    began: int
    ended: int
    failed: bool


@dataclass(slots=True, eq=False)
class Node:
    """A file or a directory, whatever it is called."""

    changes: list[Change] = field(default_factory=list)
    entries: list[Entry] | None = None
    syncs: list[Sync] = field(default_factory=list)
    # As the running process sees it.
    names: dict[str, "Node"] = field(default_factory=dict)

    def lasting(self, cut: int, ats: list[int]) -> list[bool]:
        """Return for each change whether it is certainly on disk at the cut.

        A sync holds what was there when it began, from when it ended. One that failed may have dropped the bytes it
        should have written, and no later one will notice; names are kept in a journal, and tried again.
        """
        state = dict.fromkeys(ats, 0)
        for sync in sorted(self.syncs):
            if sync.ended >= cut:
                continue
            for at in ats:
                if at < sync.began and not state[at]:
                    state[at] = 1 if not sync.failed else -1 if self.entries is None else 0
        return [state[at] > 0 for at in ats]


class Trace:
    """Everything below `root`, which was empty when the trace began."""

    def __init__(self, path: Path, root: Path) -> None:
        self.root = Node(entries=[])
        self.marks: list[tuple[int, bytes]] = []
        self.size = 0
        self._prefix = str(root)
        self._nodes: dict[int, Node] = {root.stat().st_ino: self.root}
        self._syncing: dict[int, int] = {}
        for at, record in enumerate(read_records(path)):
            self._take(at, record)
            self.size = at + 1

    def said_before(self, cut: int) -> list[bytes]:
        return [said for at, said in self.marks if at < cut]

    def _take(self, at: int, record: Record) -> None:
        match record.kind:
            case Kind.MARK:
                self.marks.append((at, record.data))
            case Kind.WRITE:
                if (node := self._nodes.get(record.inode)) is not None:
                    node.changes.append(Change(at, record.number, record.data))
            case Kind.TRUNCATE:
                if (node := self._nodes.get(record.inode)) is not None:
                    node.changes.append(Change(at, record.number, None))
            case Kind.SYNC_BEGINS:
                self._syncing[record.number] = at
            case Kind.SYNC_ENDS | Kind.SYNC_FAILS:
                began = self._syncing.pop(record.number)
                if (node := self._nodes.get(record.inode)) is not None:
                    node.syncs.append(Sync(began, at, record.kind is Kind.SYNC_FAILS))
            case Kind.CREATE | Kind.MKDIR:
                node = Node(entries=[] if record.kind is Kind.MKDIR else None)
                self._nodes[record.inode] = node
                self._enter(at, record.path, node)
            case Kind.LINK:
                if (node := self._nodes.get(record.inode)) is not None:
                    self._enter(at, record.other, node)
            case Kind.UNLINK:
                self._enter(at, record.path, None)
            case Kind.RENAME:
                self._rename(at, record)

    def _enter(self, at: int, path: str, node: Node | None) -> None:
        directory, name = self._find(path)
        if directory is None or (node is None and name not in directory.names):
            return  # a file of the C library's own, which the shim does not see
        assert directory.entries is not None
        directory.entries.append(Entry(at, ((name, node),)))
        _lead(directory, name, node)

    def _rename(self, at: int, record: Record) -> None:
        (old, was), (new, now) = self._find(record.path), self._find(record.other)
        if old is None or new is None or (node := old.names.get(was)) is None:
            return
        assert old.entries is not None
        assert new.entries is not None
        if old is new:
            new.entries.append(Entry(at, ((now, node), (was, None))))
        else:
            new.entries.append(Entry(at, ((now, node),)))
            old.entries.append(Entry(at, ((was, None),)))
        _lead(old, was, None)
        _lead(new, now, node)

    def _find(self, path: str) -> tuple[Node | None, str]:
        """The directory, as the running process sees it, and the name in it."""
        *folders, name = path.removeprefix(self._prefix).strip("/").split("/")
        node: Node | None = self.root
        for folder in folders:
            node = None if node is None else node.names.get(folder)
        return (node if node is not None and node.entries is not None else None), name


def _lead(directory: Node, name: str, node: Node | None) -> None:
    if node is None:
        directory.names.pop(name, None)
    else:
        directory.names[name] = node
