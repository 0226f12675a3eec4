"""The raw loops that the benchmark measures the embedded store beside."""

import importlib
import os
from collections import Counter
from pathlib import Path

import holdfast
from bench.embedded.raw import Change, raw_database, recording, replayer
from holdfast.stores.rocks import keys


def test_every_part_of_the_benchmark_can_be_imported() -> None:
    assert importlib.import_module("bench.__main__").main is not None


def test_a_recorded_lifecycle_in_batches_has_the_keys_of_every_message(tmp_path: Path) -> None:
    commits: list[list[Change]] = []
    with recording(commits), holdfast.open(tmp_path / "store", durability="os") as hf:
        queue = hf.queue("q")
        queue.enqueue([os.urandom(16)] * 10)
        queue.ack(queue.claim(limit=10))
    changes = [change for commit in commits for change in commit]
    writes = Counter(family for family, _, value in changes if value is not None)
    deletions = Counter(family for family, _, value in changes if value is None)
    for family in (keys.MESSAGES, keys.VISIBLE, keys.EXPIRIES, keys.LEASES):
        assert (writes[family], deletions[family]) == (10, 10)
    with raw_database(tmp_path / "raw") as raw:
        replayer(raw, commits)()
