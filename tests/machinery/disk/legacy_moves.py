"""A store in use while messages of the legacy layout are moved into it.

It is killed at every call that changes a file, or has its power cut at any moment, and is then looked at.

What a script is answered, it says in lines: `acking` and `acked` with the old id of a message, `sent` with a payload.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from holdfast.client.blocking import Holdfast
from holdfast.clock import sleep, steady_s
from holdfast.dice import SeededDice
from holdfast.model.answers import Info
from holdfast.model.ids import parse_id
from holdfast.server.embedded import open_blocking
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.legacy.message_import import old_id
from holdfast.stores.rocks.legacy.online import message_moves, old_messages
from holdfast.stores.rocks.legacy.online.moving_store import MovingStore
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing.children import in_child
from holdfast.testing.clock import START_MS, ManualClock
from tests.machinery.disk import shim
from tests.machinery.disk.driver import Job
from tests.machinery.disk.images import Image
from tests.machinery.disk.shim import Fault
from tests.machinery.disk.trace import Trace
from tests.machinery.disk.workers import Workers, make_place
from tests.machinery.legacy.databases import Expected, make_legacy
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing

DURABILITIES = ("fsync", "os")
SHARDS = (1, 4)
MESSAGES = 70
_WATCHED, _NOTES, _TRACE = "watched", "notes", "trace"
_FAULTS = (Fault.KILL_BEFORE, Fault.KILL_WITHIN)
_STORE = "store"
_MADE = b"made"
_PATIENCE_S = 30.0
_WEEK_MS = 7 * 86_400_000
# Power cuts of one recorded script.
_PER_TRACE = 100

Say = Callable[[bytes], None]


class Look(msgspec.Struct, kw_only=True):
    """The findings after a crash."""

    counts: dict[str, int] = {}
    violations: list[str] = []


# --- Kills ---------------------------------------------------------------------------------------------------------


def run_move_kills(
    percent: int,
    *,
    seed: int = 0,
    progress: Progress = say_nothing,
    processes: int = 1,
    shards: tuple[int, ...] = SHARDS,
) -> PartOutcome:
    """Kill at this percentage of the calls, in turns just before the call and in the middle of it; at 100, at both."""
    outcome, started_s = PartOutcome(name="legacy move kills", unit="points"), steady_s()
    every = max(1, 100 // percent)
    with make_place() as place, Workers(processes) as workers:
        jobs: list[Job] = []
        for durability, number in product(DURABILITIES, shards):
            told = {"place": place, "seed": seed, "durability": durability, "shards": number}
            done = workers.call("legacy_moves:count_calls", **told)
            if done.error is not None:
                raise RuntimeError(done.error)
            calls = range(1 + seed % every, done.result + 5, every)
            points = [(n, fault) for n in calls for fault in _FAULTS]
            if every > 1:
                points = [(n, _FAULTS[index % 2]) for index, n in enumerate(calls)]
            for n, fault in points:
                job = Job(number=len(jobs), task="legacy_moves:kill_at", arguments={**told, "n": n, "fault": fault})
                jobs.append(job)
        for done in workers.run(jobs):
            outcome.done += 1
            _take(outcome, done.error, done.result, jobs[done.number].arguments)
            progress(outcome.done, len(jobs), f"{outcome.violated} violations")
    outcome.seconds = steady_s() - started_s
    return outcome


def _take(outcome: PartOutcome, error: str | None, result: Any, arguments: dict[str, Any]) -> None:
    where = ", ".join(f"{name} {value}" for name, value in arguments.items() if name != "place")
    if error is not None:
        outcome.violate(f"{where}: {error}")
        return
    found = msgspec.convert(result, Look)
    outcome.add_counts(found.counts)
    for violation in found.violations:
        outcome.violate(f"{where}: {violation}")


def count_calls(place: str, seed: int, durability: str, shards: int) -> int:
    root = Path(place) / f"count-{os.getpid()}"

    def play() -> int:
        _play(root, seed, durability, shards, None, 0)
        return shim.counted().calls

    ended = in_child(play)
    shutil.rmtree(root)
    if ended.error is not None:
        raise RuntimeError(ended.error)
    result: int = ended.result
    return result


def kill_at(place: str, seed: int, durability: str, shards: int, n: int, fault: int) -> Look:
    root = Path(place) / f"point-{os.getpid()}"
    try:
        ended = in_child(lambda: _play(root, seed, durability, shards, Fault(fault), n))
        if ended.error is not None or ended.hangs:
            return Look(violations=[f"the script broke off: {ended.error or 'it hangs'}"])
        notes = (root / _NOTES).read_bytes().splitlines()
        looked = in_child(lambda: look_at(root / _WATCHED / _STORE, notes, seed, durability=durability))
        if looked.result is None:
            why = looked.error or ("it hangs" if looked.hangs else f"signal {looked.signal}")
            return Look(violations=[f"looking at it broke off: {why}"])
        found = msgspec.convert(looked.result, Look)
        found.counts["killed"] = int(ended.was_killed)
        return found
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _play(root: Path, seed: int, durability: str, shards: int, fault: Fault | None, n: int) -> None:
    watched = root / _WATCHED
    watched.mkdir(parents=True)
    notes = os.open(root / _NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    expected = make_old(watched / _STORE, seed)
    shim.watch(watched)
    if fault is not None:
        shim.arm(fault, n)

    def say(said: bytes) -> None:
        os.write(notes, said + b"\n")

    run_script(watched / _STORE, expected, say, seed, durability, shards)


# --- Power cuts ----------------------------------------------------------------------------------------------------


def run_move_power_cuts(
    total: int, *, seed: int = 0, progress: Progress = say_nothing, processes: int = 1
) -> PartOutcome:
    """Open `total` disks as power cuts leave them; every third of a store with durability `os`, every second with
    shards."""
    outcome, started_s = PartOutcome(name="legacy move power cuts", unit="images"), steady_s()
    with make_place() as place, Workers(processes) as workers:
        jobs = [
            Job(number=number, task="legacy_moves:cut_power", arguments={"place": place, "seed": seed, "image": number})
            for number in range(total)
        ]
        for done in workers.run(jobs):
            outcome.done += 1
            _take(outcome, done.error, done.result, jobs[done.number].arguments)
            progress(outcome.done, total, f"{outcome.violated} violations")
    outcome.seconds = steady_s() - started_s
    return outcome


def cut_power(place: str, seed: int, image: int) -> Look:
    durability, shards = "os" if image % 3 == 2 else "fsync", SHARDS[image % len(SHARDS)]
    script_seed = seed * 1_000_003 + image // _PER_TRACE
    trace = _trace(place, script_seed, durability, shards)
    dice = random.Random(f"image {seed} {image}")
    [made_at] = [at for at, said in trace.marks if said == _MADE]
    cut = dice.randrange(made_at, trace.size + 1)
    root = Path(place) / f"image-{os.getpid()}"

    def look() -> Look:
        made = Image(trace, cut, dice)
        made.write_to(root)
        notes = [each for each in made.said if each != _MADE]
        found = look_at(root / _STORE, notes, script_seed, durability=durability, power_cut=True)
        where = f"cut {cut} of {trace.size}, {durability}, shards {shards}, {made.loss.name.lower()}"
        found.violations = [f"{where}: {each}" for each in found.violations]
        return found

    try:
        ended = in_child(look)
        if ended.result is None:
            why = ended.error or ("it hangs" if ended.hangs else f"signal {ended.signal}")
            return Look(violations=[f"cut {cut} of {trace.size}, {durability}: {why}"])
        return msgspec.convert(ended.result, Look)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@lru_cache(maxsize=4)
def _trace(place: str, seed: int, durability: str, shards: int) -> Trace:
    root = Path(place) / f"recorded-{os.getpid()}-{seed}-{durability}-{shards}"
    watched = root / _WATCHED
    watched.mkdir(parents=True)

    def record() -> None:
        shim.watch(watched)
        shim.trace_to(os.open(root / _TRACE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
        expected = make_old(watched / _STORE, seed)
        for path in (*(watched / _STORE).iterdir(), watched / _STORE, watched):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        shim.mark(_MADE)
        run_script(watched / _STORE, expected, shim.mark, seed, durability, shards)
        shim.disarm()

    ended = in_child(record)
    if ended.error is not None or ended.signal is not None:
        raise RuntimeError(f"the script broke off: {ended.error or ended.signal}")
    trace = Trace(root / _TRACE, watched)
    shutil.rmtree(root)
    return trace


# --- The script, and what it leaves --------------------------------------------------------------------------------


def make_old(path: Path, seed: int) -> Expected:
    """Make a database in which crashes left one message in six half done, so that there is every kind."""
    return make_legacy(path, MESSAGES, seed=seed, now_s=START_MS // 1_000, damaged_share=0.16)


def expect_old(seed: int, place: Path) -> Expected:
    """Return the messages that the database had."""
    expected = make_old(place, seed)
    shutil.rmtree(place)
    return expected


def open_moving(
    path: Path, clock: ManualClock, expected: Expected, *, durability: str, shards: int | None, seed: int
) -> Holdfast:
    # In a child of its own: small steps, so that there are many of them, and deletions in between.
    old_messages.STEP, old_messages.CLAIM_STEP = 7, 5
    message_moves.DELETED_TOGETHER = 10
    store = MovingStore(
        path,
        SeededDice(seed),
        durability=Durability(durability),
        journal_retention_ms=_WEEK_MS,
        shards=shards,
        low_disk_bytes=0,
        accept_unreadable=expected.unreadable,
    )
    return open_blocking("", {}, clock=clock, store=store)


def run_script(path: Path, expected: Expected, say: Say, seed: int, durability: str, shards: int) -> None:
    hf = open_moving(path, ManualClock(START_MS), expected, durability=durability, shards=shards, seed=seed)
    queue = hf.queue()
    total = expected.count
    for number in range(4):
        claimed = queue.claim(5, wait=0)
        for message in claimed[:3]:
            id = old_id(parse_id(message.id), message.headers).hex().encode()
            say(b"acking " + id)
            message.ack()
            say(b"acked " + id)
            total -= 1
        if len(claimed) != 5:
            raise AssertionError(f"{len(claimed)} messages were claimed of {queue.stats()}")
        claimed[-1].nack("later")
        payload = b"new %d" % number
        queue.enqueue(payload)
        say(b"sent " + payload)
        total += 1
        queue.list(limit=3)
        stats = queue.stats()
        if stats.ready + stats.delayed + stats.in_flight != total:
            raise AssertionError(f"{stats} are not {total} messages")
    wait_until_moved(hf)
    hf.close()


def wait_until_moved(hf: Holdfast) -> None:
    ends_s = steady_s() + _PATIENCE_S
    while hf.queue().stats().legacy_left is not msgspec.UNSET:
        if steady_s() > ends_s:
            raise AssertionError(f"not moved: {hf.queue().stats()}")
        sleep(0.002)


def look_at(path: Path, notes: list[bytes], seed: int, *, durability: str, power_cut: bool = False) -> Look:
    """Let the move end, and compare what is there with what was there and what was answered."""
    look = Look(counts={}, violations=[])
    expected = expect_old(seed, path.with_name("again"))
    assert expected.messages is not None
    hf = open_moving(path, ManualClock(START_MS), expected, durability=durability, shards=None, seed=seed + 1)
    wait_until_moved(hf)
    found: list[Info] = []
    cursor = None
    while True:
        page = hf.queue().list(limit=50, payload=True, cursor=cursor)
        found += page
        if (cursor := page.cursor) is None:
            break
    hf.close()
    is_lossy = power_cut and durability == "os"
    _compare(look, found, expected.messages, notes, is_lossy=is_lossy)
    for violation in verify(path).violations:
        look.violations.append(f"verify: {violation}")
    kept = sum(expected.oddities[kind] for kind in ("unreadable", "unknown key", "in both states"))
    kept_file = path / "legacy-unreadable.jsonl"
    lines = kept_file.read_bytes().splitlines() if kept_file.exists() else []
    if len(lines) != kept:
        look.violations.append(f"{len(lines)} keys are kept, of {kept}")
    if (path / "legacy").exists() or (path / "CURRENT").exists():
        look.violations.append("the old database is still there")
    look.counts["looked"] = 1
    return look


def _compare(
    look: Look, found: list[Info], old: dict[bytes, tuple[bytes, int | None]], notes: list[bytes], *, is_lossy: bool
) -> None:
    said = [line.partition(b" ")[::2] for line in notes]
    acked = {bytes.fromhex(rest.decode()) for word, rest in said if word == b"acked"}
    acking = {bytes.fromhex(rest.decode()) for word, rest in said if word == b"acking"} - acked
    sent = {rest for word, rest in said if word == b"sent"}
    look.counts["acked"], look.counts["old"] = len(acked), 0
    by_id: Counter[bytes] = Counter()
    payloads: Counter[bytes] = Counter()
    for each in found:
        payloads[each.payload or b""] += 1
        if (each.payload or b"").startswith(b"new "):
            continue
        id = old_id(each.snowflake, each.headers)
        by_id[id] += 1
        look.counts["old"] += 1
        if id not in old:
            look.violations.append(f"{id.hex()} was never there")
        elif each.payload != old[id][0]:
            look.violations.append(f"{id.hex()} has another payload")
        elif (ends := old[id][1]) is not None and ends > START_MS and each.lease_expires_at != ends:
            look.violations.append(f"{id.hex()} is {each.state}, not held until {ends}")
    for id, count in by_id.items():
        if count > 1:
            look.violations.append(f"{id.hex()} is there {count} times")
        if id in acked and not is_lossy:
            look.violations.append(f"{id.hex()} was acked, and is back")
    for id in old.keys() - by_id.keys() - acked - acking:
        look.violations.append(f"{id.hex()} is lost")
    if not is_lossy:
        look.violations += [f"{payload!r} is lost" for payload in sent if payloads[payload] != 1]
