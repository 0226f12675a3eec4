"""Checks of a store that is opened again: it is intact, and has everything that was answered."""

from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.client.blocking import Holdfast, Queue
from holdfast.model.errors import HoldfastError, QueueNotFound, StoreUnavailable
from holdfast.model.names import parse_ref
from holdfast.model.policy import QueuePolicy
from holdfast.stores.rocks.recovery.marker import MARKER
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing.clock import ManualClock
from tests.machinery.disk.notes import Told
from tests.machinery.disk.script import QUEUES, STORE, TICKS
from tests.machinery.disk.store import core_of, open_small, run, sweep
from tests.machinery.history import Line, Moved, Opened, PowerCut, check
from tests.machinery.history.recording import Caller
from tests.machinery.history.scripts import Recorder

# Beyond the numbers of a script's calls.
_FIRST_CALL = 1_000_000
_STEP_MS = 3_000


class Aftermath(msgspec.Struct, kw_only=True):
    violations: list[str] = []
    counts: dict[str, int] = {}
    # The named error that opening was refused with.
    refused: str | None = None


def look_at(
    root: Path,
    told: Told,
    *,
    durability: str = "fsync",
    power_cut: bool = False,
    may_lose: bool = False,
    allow_refusals: bool = False,
) -> Aftermath:
    """Verify the store below `root`, drain it, and compare all of it with the notes.

    With `may_lose` nothing was promised: the store must be intact, but may have less, or raise a named error.
    """
    found, store = Aftermath(), root / STORE
    if not (store / MARKER).exists():
        if "open" in told.reached and not may_lose:
            found.violations.append("the store is gone")
        return found
    try:
        _verify(store, "reopened", found)
        lines = _open_and_drain(store, told, durability, found, is_bound=not may_lose)
        _verify(store, "drained", found)
        if power_cut and not may_lose:
            _check_backup(root, told, found)
    except StoreUnavailable as error:
        found.refused = error.message
        return found
    if not may_lose:
        history = [*told.lines, *([PowerCut()] if power_cut else []), *lines]
        findings = check(history, allow_refusals=allow_refusals)
        found.violations += map(str, findings.violations)
        found.counts = dict(findings.counts)
    else:
        found.violations += _foreign_payloads(told.lines, lines)
    return found


def _verify(store: Path, when: str, found: Aftermath) -> None:
    report = verify(store)
    found.violations += [f"{when}: {each}" for each in report.violations[:5]]


def _open_and_drain(store: Path, told: Told, durability: str, found: Aftermath, *, is_bound: bool) -> list[Line]:
    clock, lines = ManualClock(told.now_ms), list[Line]()
    hf = open_small(store, clock, durability=durability, seed=1)
    try:
        lines.append(Opened(session=_FIRST_CALL, durability=durability))
        if is_bound:
            _check_registers(hf, told, found)
        _check_ticks(hf, found)
        caller = Caller(hf, Recorder(lines.append, clock.now_ms, _FIRST_CALL))
        there = [name for name in QUEUES if _exists(hf, name)]
        _check_single(hf, there, found)
        for name in there:
            caller.count(name)

        def pause() -> None:
            clock.advance(_STEP_MS)
            sweep(hf)

        caller.drain(there, wait_ms=0, pause=pause)
        if is_bound:
            caller.read_journal()
    finally:
        hf.close()
    return lines


def _exists(hf: Holdfast, name: str) -> bool:
    return run(hf, core_of(hf).store.directory.find_queue(parse_ref(*name.split("/")))) is not None


def _check_single(hf: Holdfast, queues: list[str], found: Aftermath) -> None:
    """Each message is in one queue, whatever became of its moves."""
    seen: dict[int, str] = {}
    for name in queues:
        tenant, _, queue = name.partition("/")
        for info in hf.queue(queue, tenant=tenant).list(limit=1_000):
            if seen.setdefault(info.snowflake, name) != name:
                found.violations.append(f"{info.snowflake} is in {seen[info.snowflake]} and in {name}")


def _check_registers(hf: Holdfast, told: Told, found: Aftermath) -> None:
    for register, allowed in told.registers.items():
        kind, _, name = register.partition(" ")
        value = _value_of(hf, kind, name)
        if kind == "policy" and "" in allowed:
            allowed = [*allowed, str(QueuePolicy().lease_ms)]  # the queue is made first
        if value is not None and value not in allowed:
            found.violations.append(f"{register} is {value!r} and was set to {allowed}")


def _value_of(hf: Holdfast, kind: str, name: str) -> str | None:
    """Return None if that is unknown, because its message or queue has ended."""
    store = core_of(hf).store
    match kind:
        case "policy":
            row = run(hf, store.directory.find_queue(parse_ref(*name.split("/"))))
            return None if row is None else str(row.policy.lease_ms)
        case "state":
            for queue in QUEUES:  # it goes along where its message is moved
                with suppress(QueueNotFound):
                    entry = run(hf, store.get(parse_ref(*queue.split("/")), int(name)))
                    if entry is not None:
                        return (entry.state.document or b"").decode()
            return None
        case "schedule":
            try:
                return "".join(str(each.every_ms) for each in _ticks(hf).schedules())
            except QueueNotFound:
                return ""
    return None


def _ticks(hf: Holdfast) -> Queue:
    tenant, _, name = TICKS.partition("/")
    return hf.queue(name, tenant=tenant)


def _check_ticks(hf: Holdfast, found: Aftermath) -> None:
    """One message for each tick, at most."""
    try:
        ticks = Counter(each.headers["scheduled-at"] for each in _ticks(hf).list(limit=1_000))
    except QueueNotFound:
        return
    found.violations += [f"tick {at} fired {times} times" for at, times in ticks.items() if times > 1]


def _check_backup(root: Path, told: Told, found: Aftermath) -> None:
    for name in told.registers.get("backup", []):
        if name and len(told.registers["backup"]) == 1:
            try:
                _verify(root / name, "backup", found)
            except HoldfastError as error:
                found.violations.append(f"the backup cannot be read: {error}")


def _foreign_payloads(sent: list[Line], lines: list[Line]) -> list[str]:
    """Payloads that nobody sent, or to another queue. Any move may be undone."""
    told = [line for line in sent if not isinstance(line, Moved)]
    findings = check([*told, PowerCut(), *lines], allow_refusals=True)
    return [str(each) for each in findings.violations if each.rule in ("corrupt", "leaked", "miscounted", "stuck")]
