"""A crash at every write, and a closing after which the log is not needed."""

from pathlib import Path

import pytest

from holdfast.client.blocking import Holdfast
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.log.frames import LogPartKind
from holdfast.testing import ManualClock
from tests.crash.rocks import WEEK_MS, copy_store, open_store, sweep, verify_store
from tests.stores.rocks.durability.restartable_store import DAY_MS, LARGE


@pytest.mark.spec("4.3")
def test_whatever_write_is_the_last_one_the_store_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill may come after any write. After each of them, every invariant holds."""
    copies: list[Path] = []
    write = Database.write
    is_copying = True

    def copying_write(database: Database, *kind: LogPartKind) -> None:
        write(database, *kind)
        if is_copying:
            copies.append(copy_store(database.path, tmp_path / f"copy {len(copies)}"))

    monkeypatch.setattr(Database, "write", copying_write)
    clock = ManualClock()
    for part in (_fill, _use, _let_time_pass):
        with open_store(tmp_path / "store", clock, settings={"max_payload": 4 << 20}) as hf:
            part(hf, clock)
    is_copying = False
    assert len(copies) > 60
    for copy in copies:
        verify_store(copy, copy.name)


def _fill(hf: Holdfast, clock: ManualClock) -> None:
    for name in ("mail", "pay"):
        queue = hf.queue(name, tenant="acme")
        queue.enqueue([b"a", b"b"], priority=3)
        queue.enqueue(b"c", ttl="1m")
        queue.enqueue(b"d", ttl="1m", group="g")
        queue.enqueue([b"e", b"f"], group="g")
        queue.enqueue(b"g", delay="30s", key="k")
        queue.enqueue(b"h", group="h", delay="30s", ttl="2m")
        queue.enqueue(bytes(LARGE), ttl="1m")
        queue.claim(1, lease="30s")
    # Nothing but time will touch this one.
    idle = hf.queue("idle", tenant="acme")
    idle.enqueue([b"a", b"b"], ttl="1m")
    idle.enqueue([b"c", b"d"], ttl="1m", group="g")
    idle.enqueue([b"e"], ttl="1m", delay="30s")


def _use(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("mail", tenant="acme")
    queue.set_policy(keep_succeeded_ms=10_000, dedup_window_ms=20_000)
    queue.enqueue(b"i", key="l")
    messages = queue.claim(3, state=True, lease="40s")
    messages[0].save_state({"step": 1})
    messages[0].nack("failed", delay="1s")
    messages[1].ack()
    messages[2].nack("broken", final=True)
    queue.claim(2, ledger=("spark", 1))
    queue.ledger_ack("spark", 1)
    queue.redrive()
    queue.reprioritise(9)
    queue.move("pay", filter={"priority": 9})
    queue.pause()
    hf.queue("gone", tenant="acme").enqueue([b"x", b"y"], key=None, group="g")
    hf.queue("gone", tenant="acme").delete(force_after=0)
    sweep(hf)


def _let_time_pass(hf: Holdfast, clock: ManualClock) -> None:
    """In particular in queues that were not used since the opening."""
    for step_ms in (30_000, 30_000, 60_000, DAY_MS, 2 * WEEK_MS):
        clock.step_to(clock.now_ms() + step_ms)
        sweep(hf)
    for message in hf.queue("pay", tenant="acme").claim(100):
        message.ack()


def test_a_store_closed_in_order_needs_no_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as hf:
        hf.queue("mail").enqueue([b"%d" % number for number in range(100)])
        [message] = hf.queue("mail").claim()
        message.ack()
    for log in (tmp_path / "store" / "db").glob("*.log"):
        log.unlink()
    with open_store(tmp_path / "store") as hf:
        assert hf.queue("mail").stats().ready == 99
        assert len(hf.journal()) == 102
    verify_store(tmp_path / "store", "without its log")
