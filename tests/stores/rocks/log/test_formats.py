"""Stores of the formats before: opened as they are, and of the present format from then on.

Single changes are written as in those formats, so a store that had no others differs in the number alone.
"""

import json
from pathlib import Path

import pytest

import holdfast
from holdfast.stores.rocks.recovery.marker import MARKER, WHOLE_STORE, Role
from tests.crash.rocks import copy_store, verify_store
from tests.stores.rocks.log.database_ends import mark_as_killed


@pytest.mark.parametrize(
    ("format", "shards", "present"), [(2, 1, WHOLE_STORE.format), (3, 2, Role(2, "shards-1").format)]
)
@pytest.mark.parametrize("was_killed", [False, True])
def test_a_store_of_the_format_before_is_opened_and_gets_the_present_one(
    tmp_path: Path, format: int, shards: int, present: int, was_killed: bool
) -> None:
    older = tmp_path / "older"
    with holdfast.open(tmp_path / "made", shards=shards) as hf:
        for number in range(10):
            hf.queue(f"mail{number % 3}").enqueue(f"{number}")
        if was_killed:
            copy_store(tmp_path / "made", older)
    if not was_killed:
        copy_store(tmp_path / "made", older)
    markers = list(older.rglob(MARKER))
    for marker in markers:
        if was_killed:
            mark_as_killed(marker.parent)
        assert json.loads(marker.read_text())["format"] == present
        marker.write_text(marker.read_text().replace(f'"format": {present}', f'"format": {format}'))
    verify_store(older, "before it is opened")
    with holdfast.open(older) as hf:
        assert [json.loads(marker.read_text())["format"] for marker in markers] == [present] * len(markers)
        found = [message.json() for number in range(3) for message in hf.queue(f"mail{number}").claim(10)]
    assert sorted(found) == [str(number) for number in range(10)]
    verify_store(older, "after it was opened")
