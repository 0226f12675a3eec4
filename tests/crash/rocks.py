"""The embedded store as its tests hold it: on the manual clock, with its directory in the test's hands."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from holdfast.client.blocking import Holdfast
from holdfast.dice import SeededDice
from holdfast.server.compose import Core
from holdfast.server.embedded import Embedded, open_blocking
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock

WEEK_MS = 7 * 86_400_000


def open_store(
    path: Path,
    clock: ManualClock | None = None,
    *,
    durability: str = "os",
    make: Callable[..., RocksStore] = RocksStore,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Holdfast:
    options.setdefault("journal_retention_ms", WEEK_MS)
    store = make(path, SeededDice(0), durability=Durability(durability), **options)
    return open_blocking("", settings or {}, clock=clock or ManualClock(), store=store)


def core_of(hf: Holdfast) -> Core:
    return cast(Embedded, hf._inner._transport).core


def sweep(hf: Holdfast) -> int:
    """Sweep until nothing is left to do now; answers how much changed."""
    sweeper, total = core_of(hf).sweeper, 0
    while changed := hf._driver.run(sweeper.sweep_once()):
        total += changed
    return total


def verify_store(path: Path, when: str) -> None:
    """Every invariant of the store's own files."""
    if (path / "HOLDFAST").exists():  # else killed before it was ever made
        violations = verify(path).violations
        assert not violations, f"{when}: {violations[:10]}"


def copy_store(store: Path, target: Path) -> Path:
    """Copy a store as a kill at this moment would leave it. The lock file is left out, because opening and closing it
    would release this process's own lock."""
    for _ in range(100):
        try:
            before = _listing(store)
            shutil.copytree(store, target, ignore=shutil.ignore_patterns("LOCK"))
            if _listing(store) == before:
                return target
        except (shutil.Error, FileNotFoundError):
            pass  # a file went while it was looked at or copied
        # RocksDB tidied up in the background meanwhile: this copy was at no moment what lay there.
        shutil.rmtree(target, ignore_errors=True)
    raise AssertionError(f"{store} never lay still")


def _listing(store: Path) -> list[tuple[str, int]]:
    files = (each for folder in store.glob("**/db") for each in folder.iterdir() if each.name != "LOG")
    return sorted((str(each), each.stat().st_size) for each in files)


def contents(directory: Path) -> dict[str, bytes | None]:
    """Every file below and its bytes, but for the text log and the lock of RocksDB itself."""
    found: dict[str, bytes | None] = {}
    for folder, _, files in os.walk(directory):
        found[os.path.relpath(folder, directory)] = None
        for name in files:
            if not name.startswith("LOG") and name != "LOCK":
                file = Path(folder) / name
                found[str(file.relative_to(directory))] = file.read_bytes()
    return found
