"""Migrations of a legacy database that are killed in the middle, again and again, until one comes through."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, time
from typing import cast

import holdfast
from holdfast.model.names import QueueRef
from holdfast.model.requests import EVERYTHING
from holdfast.server.embedded import Embedded
from holdfast.stores.rocks.legacy.message_import import old_id
from holdfast.stores.rocks.legacy.migration import migrate_legacy
from holdfast.stores.rocks.verify.store_check import verify
from tests.machinery.legacy.databases import Expected, add_to_digest, make_legacy
from tests.machinery.outcomes import PartOutcome, Progress

_PAGE = 1_000


def run_legacy_migration(
    total: int, *, seed: int, progress: Progress, kills: int = 6, step: int = 1_000
) -> PartOutcome:
    """Migrate this number of messages, with kills during the copy, the check and the switch."""
    outcome = PartOutcome(name="legacy-migration", unit="messages")
    started_s = monotonic()
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-legacy-") as place:
        path = Path(place) / "store"
        expected = make_legacy(
            path,
            total,
            seed=seed,
            now_s=int(time()),
            keeps_messages=False,
            progress=lambda done: progress(done // 4, total, "making the database"),
        )
        # About as many times is a whole migration told of, and each goes on where the last was killed: a part of it for
        # each kill. The last two fall into the switch.
        tellings = expected.count // step * 2
        for number in range(kills):
            at = dice.randrange(1, max(2, tellings // kills)) if number < kills - 2 else -dice.randrange(1, 8)
            killed = _run_child(path, at, step, expected.unreadable)
            outcome.add_counts({"kills": killed})
            progress(total // 4 + total // 2 * (number + 1) // kills, total, f"killed {number + 1} times")
        if _run_child(path, 0, step, expected.unreadable):
            outcome.violate(f"seed {seed}: the migration was ended by a signal that nobody sent")
        found, digest = asyncio.run(_look(path))
        outcome.done = found
        if (found, digest) != (expected.count, expected.digest):
            outcome.violate(f"seed {seed}: {found} messages of {expected.count}, digests differ or counts do")
        report = verify(path, None)
        for violation in report.violations:
            outcome.violate(f"seed {seed}: {violation}")
    outcome.seconds = monotonic() - started_s
    return outcome


def _run_child(path: Path, die_at: int, step: int, unreadable: int) -> bool:
    """Return whether it was killed. It may finish before; any other end is an error."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.machinery.legacy.kills", *map(str, (path, die_at, step, unreadable))],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the migration ended with {child.returncode}: {child.stderr}")
    return child.returncode != 0


async def _look(path: Path) -> tuple[int, int]:
    """Return the count and the hash of the store's messages, as read by the store."""
    count, digest, after = 0, 0, None
    async with holdfast.open_async(str(path), durability="os") as hf:
        store = cast(Embedded, hf._transport).core.store
        while True:
            listing = await store.browse(QueueRef(), None, EVERYTHING, after, _PAGE, 0)
            for found in listing.found:
                count += 1
                envelope = found.envelope
                digest = add_to_digest(digest, old_id(envelope.id, envelope.headers), envelope.payload)
            after = listing.after
            if after is None:
                return count, digest


class _Fuse:
    """Kills this process when it is told the so-manieth time: of all that there is to tell, or, where the number is
    below 0, of the switch."""

    def __init__(self, die_at: int) -> None:
        self._left = abs(die_at)
        self._is_of_switch = die_at < 0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage == "survey":
            return  # it is repeated by every run, and would take all the kills
        if self._left and (not self._is_of_switch or stage not in ("copy", "check")):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, die_at: str, step: str, unreadable: str) -> None:
    asyncio.run(migrate_legacy(path, _Fuse(int(die_at)), accept_unreadable=int(unreadable), step=int(step)))


__all__ = ["Expected", "run_legacy_migration"]

if __name__ == "__main__":
    main(*sys.argv[1:])
