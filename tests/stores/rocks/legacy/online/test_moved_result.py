"""A database that was moved while in use has the same messages as one that was migrated offline."""

from pathlib import Path

import pytest

from holdfast.model.answers import Info
from holdfast.model.message import State
from holdfast.server.embedded import open_on_loop
from holdfast.stores.rocks.legacy.message_import import old_id
from holdfast.stores.rocks.legacy.migration import migrate_legacy
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock
from tests.machinery.legacy.databases import ITEM_ORDERS, make_legacy
from tests.stores.rocks.legacy.online.legacy_queue import NOW_MS, NOW_S, list_all, open_moving, wait_until_moved

# Everything that a look-up shows of a message, but for a new id.
Shown = tuple[bytes | None, State, int, int | None, int, int, dict[str, str], int]


def shown(every: list[Info]) -> dict[bytes, Shown]:
    found = {
        old_id(each.snowflake, each.headers): (
            *(each.payload, each.state, each.visible_at, each.lease_expires_at),
            *(each.priority, each.attempt, each.headers, each.bytes),
        )
        for each in every
    }
    assert len(found) == len(every)
    return found


@pytest.mark.spec("4.7", "9.9")
@pytest.mark.parametrize("seed", range(6))
async def test_a_move_and_a_migration_have_the_same_result(tmp_path: Path, seed: int) -> None:
    for name in ("migrated", "moved"):
        expected = make_legacy(
            tmp_path / name,
            300,
            seed=seed,
            now_s=NOW_S,
            families=seed % 2 == 1,
            packs=seed % 3 == 1,
            order=ITEM_ORDERS[seed],
            damaged_share=0.2,
        )
    clock = ManualClock(NOW_MS)

    await migrate_legacy(tmp_path / "migrated", accept_unreadable=expected.unreadable, clock=clock)
    async with open_on_loop(str(tmp_path / "migrated"), {}, clock=clock) as hf:
        migrated = shown(await list_all(hf))
    async with open_moving(tmp_path / "moved", clock, accept_unreadable=expected.unreadable) as hf:
        while_moving = shown(await list_all(hf))
        await wait_until_moved(hf)
        moved = shown(await list_all(hf))

    assert moved == migrated
    assert while_moving == migrated
    assert len(moved) == expected.count
    kept = [(tmp_path / name / "legacy-unreadable.jsonl").read_bytes().splitlines() for name in ("migrated", "moved")]
    assert len(kept[0]) == len(kept[1])
    for name in ("migrated", "moved"):
        assert verify(tmp_path / name).is_clean
