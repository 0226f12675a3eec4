"""Damage each file of a store, and open it: it is refused by a named error, or everything is there. Nothing is skipped.

    killed   a store as a kill leaves it, its messages in a log; `long`: in a log of several blocks
    closed   one that was closed in order, its messages in sorted files
    flip     one bit, of any file
    cut      the log, at each byte of its last record: that record alone is lost
    drop     one of three logs that go on from each other

After a power cut (the marker names another boot) a log may end early: then the first messages are there, and no others.
"""

import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.clock import steady_s
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.log_check import logs_of
from holdfast.stores.rocks.log_records import BLOCK, chain_end, records_of
from holdfast.stores.rocks.marker import MARKER, boot_id
from holdfast.testing.children import in_child
from holdfast.testing.clock import ManualClock
from holdfast.testing.disk.aftermath import Aftermath
from holdfast.testing.disk.driver import Job
from holdfast.testing.disk.store import SMALL_BUFFER, open_small
from holdfast.testing.disk.workers import Workers, make_place
from holdfast.testing.proving import PartOutcome, Progress, say_nothing

STORES = {
    "killed": [40, 40, 40, 40, 40],
    "long": [300, 20_000, 300, 300, 15_000, 40_000, 300, 300, 9_000, 300],
    "closed": [40, 3_000, 40, 3_000, 40],
}
# Of a long log each so many bytes, and of all others each one.
_LONG_STEP = 7
_ROOM_FOR_ALL = 4 << 20
# RocksDB's own text, and what nothing is read from.
_UNREAD = ("LOG", "LOCK", "OPTIONS", "IDENTITY")


class Damage(NamedTuple):
    store: str
    how: str
    file: str
    at: int = 0
    bit: int = 0
    power_cut: bool = False


def run_rot(
    total: int | None = None, *, seed: int = 0, progress: Progress = say_nothing, processes: int = 1
) -> PartOutcome:
    """So many of all the ways to damage a store, spread evenly; None: every one."""
    outcome, started_s = PartOutcome(name="rot", unit="damages"), steady_s()
    with make_place() as place, Workers(processes) as workers:
        damages: list[Damage] = []
        for store in STORES:
            made = workers.call("rot:make", place=place, store=store)
            if made.error is not None:
                raise RuntimeError(made.error)
            damages += msgspec.convert(made.result, list[Damage])
        step = 1.0 if total is None else max(1.0, len(damages) / total)
        chosen = [damages[int(number * step + seed % step)] for number in range(int(len(damages) / step))]
        jobs = [
            Job(number=number, task="rot:damage", arguments={"place": place, "damage": list(each)})
            for number, each in enumerate(chosen)
        ]
        for done in workers.run(jobs):
            outcome.done += 1
            each = chosen[done.number]
            if done.error is not None:
                outcome.violate(f"{each}: {done.error}")
            else:
                found = msgspec.convert(done.result, Aftermath)
                outcome.add_counts(found.counts)
                for violation in found.violations:
                    outcome.violate(f"{each}: {violation}")
            progress(outcome.done, len(jobs), f"{outcome.violated} violations")
    outcome.seconds = steady_s() - started_s
    return outcome


# --- In the driver -------------------------------------------------------------------------------------------------


def payload(store: str, number: int) -> bytes:
    return b"%04d" % number * (STORES[store][number] // 4)


def make(place: str, store: str) -> list[Damage]:
    """The store, and every way to damage it."""
    path = Path(place) / store

    def fill() -> None:
        # One log holds all of a killed store: none is left behind by a flush.
        buffer = SMALL_BUFFER if store == "closed" else _ROOM_FOR_ALL
        hf = open_small(path, ManualClock(), durability="fsync", buffer_bytes=buffer)
        for number in range(len(STORES[store])):
            hf.queue("mail").enqueue(payload(store, number))
        if store == "closed":
            hf.close()
        else:
            os._exit(0)  # as good as a kill: nothing is flushed or closed

    ended = in_child(fill)
    if ended.signal is not None or (store == "closed" and ended.error is not None):
        raise RuntimeError(f"{store} could not be made: {ended}")
    (path / "db" / "LOCK").unlink(missing_ok=True)
    return list(_damages(path, store))


def _damages(path: Path, store: str) -> list[Damage]:
    found: list[Damage] = []
    for file in sorted(path.rglob("*")):
        if file.is_file() and not file.name.startswith(_UNREAD):
            name, size = str(file.relative_to(path)), file.stat().st_size
            bits = range(8) if store == "killed" and file.suffix == ".log" else (None,)
            found += [
                Damage(store, "flip", name, at, at % 8 if bit is None else bit, power_cut)
                for at in range(0, size, _LONG_STEP if store == "long" else 1)
                for bit in bits
                for power_cut in (False, True)
            ]
    if store != "closed":
        [log] = logs_of(path / "db")
        name, records = str(log.relative_to(path)), _records(log)
        found += [Damage(store, "cut", name, at) for at in range(*records[-1])]
        found += [Damage(store, "drop", name, number, power_cut=cut) for number in range(2) for cut in (False, True)]
    return found


def _records(log: Path) -> list[tuple[int, int]]:
    raw = log.read_bytes()
    return [
        (at, after)
        for block in range(0, len(raw), BLOCK)
        for at, after, _ in records_of(raw, block, chain_end(raw, block, min(block + BLOCK, len(raw))))
    ]


def damage(place: str, damage: tuple[str, str, str, int, int, bool]) -> Aftermath:
    each = Damage(*damage)
    target = Path(place) / f"damaged-{os.getpid()}"
    shutil.copytree(Path(place) / each.store, target)
    try:
        _carry_out(target, each)
        ended = in_child(lambda: _read(target, each.store))
        if ended.result is None:
            why = ended.error or ("the opening does not end" if ended.hangs else f"signal {ended.signal}")
            return Aftermath(violations=[why])
        return _judge(each, ended.result)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _carry_out(store: Path, damage: Damage) -> None:
    if damage.power_cut:
        marker = store / MARKER
        marker.write_bytes(marker.read_bytes().replace((boot_id() or "-").encode(), b"the boot before"))
    file = store / damage.file
    match damage.how:
        case "flip":
            raw = bytearray(file.read_bytes())
            raw[damage.at % len(raw)] ^= 1 << damage.bit
            file.write_bytes(raw)
        case "cut":
            os.truncate(file, damage.at)
        case "drop":
            _split(file)
            first, middle, _ = logs_of(file.parent)
            if damage.at:
                middle.unlink()
            else:
                first.write_bytes(b"")


def _split(log: Path) -> None:
    """Into three logs that go on from each other."""
    raw, records = log.read_bytes(), _records(log)
    places = [0, records[len(records) // 3][0], records[2 * len(records) // 3][0], len(raw)]
    for number, (start, end) in enumerate(pairwise(places)):
        (log.parent / f"{int(log.stem) + 90 * number:06}.log").write_bytes(raw[start:end])


def _read(path: Path, store: str) -> list[str] | str:
    """Each payload, as the number it should be, or that it is wrong; or the error."""
    expected = {payload(store, number): str(number) for number in range(len(STORES[store]))}
    try:
        with open_small(path, ManualClock(), durability="fsync") as hf:
            queue = hf.queue("mail")
            listed = [queue.get(info.id, payload=True).payload or b"" for info in queue.list(limit=1_000)]
            claimed = [message.payload for message in queue.claim(1_000)]
            if claimed != listed:
                return ["claimed is not what was listed"]
            return [expected.get(each, f"wrong: {each[:40]!r}") for each in listed]
    except StoreUnavailable as error:
        return error.message


def _judge(damage: Damage, read: list[str] | str) -> Aftermath:
    if isinstance(read, str):
        return Aftermath(counts={"refused": 1})
    whole = [str(number) for number in range(len(STORES[damage.store]))]
    is_log = damage.file.endswith(".log")
    if damage.how == "cut":
        is_right = read == whole[:-1]
    elif damage.how == "drop":
        is_right = False
    elif damage.power_cut and is_log:
        is_right = read == whole[: len(read)]
    else:
        is_right = read == whole
    counts = {"whole" if read == whole else "shorter": 1}
    return Aftermath(violations=[] if is_right else [f"found {read}"], counts=counts)
