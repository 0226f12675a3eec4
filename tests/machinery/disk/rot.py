"""Damage each file of a store, and open it: it is refused by a named error, or every message is there.

    killed   a store as a kill leaves it, its messages in one segment of the commit log; `long`: in several segments
    closed   a store that was closed in order, its messages in RocksDB's sorted files
    sharded  a killed store of four shards; the last commit moves a message from one to another
    flip     one bit of any file
    cut      the last segment ends within its last frame: only that frame is lost, and the store opens
    tear     the same, with zeros from there on: a segment has zeros ahead of its frames
    drop     one segment is missing

After a power cut (the marker names another boot) the log may end early, but only behind the last frame that a later one
says was synced. Of the store with shards, the last frame of a log is half of the move: then both halves are lost.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.clock import steady_s
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.log.frames import FrameHeader, LogPartKind, read_header
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.log.segments import FIRST_FRAME_OFFSET, list_segments, segment_path
from holdfast.stores.rocks.recovery.marker import MARKER, read_boot_id
from holdfast.testing.children import in_child
from holdfast.testing.clock import ManualClock
from tests.machinery.disk.aftermath import Aftermath
from tests.machinery.disk.driver import Job
from tests.machinery.disk.store import open_small
from tests.machinery.disk.workers import Workers, make_place
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing

STORES = {
    "killed": [40, 40, 40, 40, 40],
    "long": [300, 20_000, 300, 300, 15_000, 40_000, 300, 300, 9_000, 300],
    "closed": [40, 3_000, 40, 3_000, 40],
    "sharded": [40, 40, 40, 40, 40],
}
_SHARDS = {"sharded": 4}
# Of the store with shards: the queues of its messages, in two shards, and the message that is moved to the other one.
_QUEUES = ["mail", "mail", "mail", "pay", "pay"]
_MOVED = 2
# The distance of the flipped bytes in the files of these stores; in all others every byte is flipped.
_STEPS = {"long": 7, "sharded": 3}
# More than any of these stores writes: no checkpoint frees a segment.
_NO_CHECKPOINT = 1 << 30
# A segment's header, and as many bytes behind its last frame. Of the zeros everywhere else, a few are flipped.
_NEAR = 64
_ZEROS_STEP = 1_021
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
    """Try this many of all the ways to damage a store, spread evenly; None: every one."""
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
    """Make the store, and return every way to damage it."""
    path = Path(place) / store

    def fill() -> None:
        shards = _SHARDS.get(store, 1)
        hf = open_small(path, ManualClock(), durability="fsync", checkpoint_bytes=_NO_CHECKPOINT, shards=shards)
        ids = [hf.queue(_queue(store, n)).enqueue(payload(store, n))[0] for n in range(len(STORES[store]))]
        if store in _SHARDS:
            moved = hf.queue("mail").move("pay", filter={"ids": [ids[_MOVED]]})
            assert moved.changed == 1
        if store == "closed":
            hf.close()
        else:
            os._exit(0)  # as good as a kill: nothing is flushed or closed

    ended = in_child(fill)
    if ended.signal is not None or (store == "closed" and ended.error is not None):
        raise RuntimeError(f"{store} could not be made: {ended}")
    for lock in path.rglob("db/LOCK"):
        lock.unlink()
    for unfinished in path.rglob(f"{LOG}/*.new"):
        unfinished.unlink()  # a segment that was being made ahead
    return list(_damages(path, store))


def _queue(store: str, number: int) -> str:
    return _QUEUES[number] if store in _SHARDS else "mail"


def _damages(path: Path, store: str) -> list[Damage]:
    found: list[Damage] = []
    step = _STEPS.get(store, 1)
    for file in sorted(path.rglob("*")):
        if not file.is_file() or file.name.startswith(_UNREAD):
            continue
        is_segment = file.parent.name == LOG
        places = _places(file, step) if is_segment else range(0, file.stat().st_size, step)
        found += [
            Damage(store, "flip", str(file.relative_to(path)), at, bit, power_cut)
            for at in places
            for bit in (range(8) if is_segment and store == "killed" else (at % 8,))
            for power_cut in (False, True)
        ]
    if store == "closed":
        return found
    for log in sorted(path.rglob(LOG)):
        last = _frames(path, log)[-1]
        found += [
            Damage(store, how, last.file, at, power_cut=power_cut)
            for how in ("cut", "tear")
            for at in range(last.header.offset, last.header.end)
            for power_cut in (False, True)
        ]
        found += [
            Damage(store, "drop", _segment_name(path, log, generation), power_cut=power_cut)
            for generation in list_segments(log)
            for power_cut in (False, True)
        ]
    return found


def _places(segment: Path, step: int) -> Iterable[int]:
    """Return the bytes of a segment to flip."""
    raw, generation = segment.read_bytes(), int(segment.stem)
    end = max((header.end for header in _headers(raw, generation)), default=FIRST_FRAME_OFFSET) + _NEAR
    return [
        *range(0, _NEAR, step),
        *range(_NEAR, FIRST_FRAME_OFFSET, _ZEROS_STEP),
        *range(FIRST_FRAME_OFFSET, min(end, len(raw)), step),
        *range(end, len(raw), _ZEROS_STEP),
    ]


class _Frame(NamedTuple):
    file: str
    header: FrameHeader


def _frames(store: Path, log: Path) -> list[_Frame]:
    """Return all frames of an undamaged log of a store, in order."""
    return [
        _Frame(_segment_name(store, log, generation), header)
        for generation in list_segments(log)
        for header in _headers(segment_path(log, generation).read_bytes(), generation)
    ]


def _headers(raw: bytes, generation: int) -> list[FrameHeader]:
    found: list[FrameHeader] = []
    at = FIRST_FRAME_OFFSET
    while (header := read_header(raw, at, generation)) is not None:
        found.append(header)
        at = header.end
    return found


def _segment_name(store: Path, log: Path, generation: int) -> str:
    return str(segment_path(log.relative_to(store), generation))


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
        found = _judge(each, ended.result, Path(place) / each.store)
        if isinstance(ended.result, str) and Path(each.file).name == MARKER:
            # A damaged marker may name other folders than there are: the refusal must not have removed any.
            shutil.copyfile(Path(place) / each.store / each.file, target / each.file)
            again = in_child(lambda: _read(target, each.store))
            if again.result != _whole(each.store):
                found.violations.append(f"with the marker put back: {again.error or again.result}")
        return found
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _carry_out(store: Path, damage: Damage) -> None:
    if damage.power_cut:
        for marker in store.rglob(MARKER):
            marker.write_bytes(marker.read_bytes().replace((read_boot_id() or "-").encode(), b"the boot before"))
    file = store / damage.file
    match damage.how:
        case "flip":
            raw = bytearray(file.read_bytes())
            raw[damage.at % len(raw)] ^= 1 << damage.bit
            file.write_bytes(raw)
        case "cut":
            os.truncate(file, damage.at)
        case "tear":
            raw = bytearray(file.read_bytes())
            raw[damage.at :] = bytes(len(raw) - damage.at)
            file.write_bytes(raw)
        case "drop":
            file.unlink()


def _read(path: Path, store: str) -> list[str] | str:
    """Return queue and number of each message by its payload, or that the payload is wrong; or the error's message."""
    expected = {payload(store, number): str(number) for number in range(len(STORES[store]))}
    found: list[str] = []
    try:
        with open_small(path, ManualClock(), durability="fsync") as hf:
            for name in dict.fromkeys(_queue(store, number) for number in range(len(STORES[store]))):
                queue = hf.queue(name)
                listed = [queue.get(info.id, payload=True).payload or b"" for info in queue.list(limit=1_000)]
                claimed = [message.payload for message in queue.claim(1_000)]
                if claimed != listed:
                    return ["claimed is not what was listed"]
                found += [f"{name} {expected.get(each, f'wrong: {each[:40]!r}')}" for each in listed]
    except StoreUnavailable as error:
        return error.message
    return found


def _whole(store: str) -> list[str]:
    """Return what an undamaged store gives to `_read`."""
    if store in _SHARDS:
        return ["mail 0", "mail 1", "pay 2", "pay 3", "pay 4"]
    return [f"mail {number}" for number in range(len(STORES[store]))]


def _before_last_commit(store: str) -> list[str]:
    return ["mail 0", "mail 1", "mail 2", "pay 3", "pay 4"] if store in _SHARDS else _whole(store)[:-1]


def _judge(damage: Damage, read: list[str] | str, undamaged: Path) -> Aftermath:
    if isinstance(read, str):
        # A crash leaves a torn end: refusing that would be wrong.
        violations = [f"refused: {read}"] if damage.how in ("cut", "tear") else []
        return Aftermath(violations=violations, counts={"refused": 1})
    whole, before_last = _whole(damage.store), _before_last_commit(damage.store)
    log = undamaged / Path(damage.file).parent
    is_right = read == whole
    match damage.how:
        case "cut" | "tear":
            is_whole = _spares_last_body(damage, undamaged) or not _has_last_commit(damage.store, undamaged, log)
            is_right = read == (whole if is_whole else before_last)
        case "drop":
            # The log goes on in each segment but the one that was made ahead.
            is_right = is_right and not any(frame.file == damage.file for frame in _frames(undamaged, log))
        case "flip" if damage.power_cut and _may_end_at(damage, undamaged):
            # No more than the last commit is in frames that no later one says were synced.
            is_right = read in (whole, before_last)
    counts = {"whole" if read == whole else "shorter": 1}
    return Aftermath(violations=[] if is_right else [f"found {read}"], counts=counts)


def _has_last_commit(store: str, undamaged: Path, log: Path) -> bool:
    """Return whether the last frame of a log is of the store's last commit, which may be half of a link."""
    return store not in _SHARDS or _frames(undamaged, log)[-1].header.kind == LogPartKind.LINKED


def _spares_last_body(damage: Damage, undamaged: Path) -> bool:
    """Return whether a cut segment still has all of its last frame but for the footer, which is then not needed."""
    header = _frames(undamaged, undamaged / Path(damage.file).parent)[-1].header
    body_end = header.body_offset + header.body_size
    if damage.how == "cut":
        return damage.at >= body_end
    return not any((undamaged / damage.file).read_bytes()[damage.at : body_end])


def _may_end_at(damage: Damage, undamaged: Path) -> bool:
    """Return whether the damaged place is in a frame, or before the first one of its segment, that no later frame says
    was synced."""
    log = undamaged / Path(damage.file).parent
    if log.name != LOG:
        return False
    frames = _frames(undamaged, log)
    hit = next((each.header for each in frames if each.file == damage.file and damage.at < each.header.end), None)
    if hit is None:
        return False
    return all(each.header.synced < hit.number for each in frames if each.header.number > hit.number)
