"""A log whose process is killed at random gives back all that it answered for."""

import os
import random
import signal
import struct
import time
from pathlib import Path

import pytest

from holdfast.stores.buffered.log.records import RECORD_BYTES
from holdfast.stores.buffered.log.wal import Wal
from tests.seeds import run_seed

KILLS = 12
_ANSWER = struct.Struct(">Q")


def _write(path: Path, first: int, answers: int, seed: int) -> None:
    """Append numbers in a separate process, and print each when it is durable."""
    dice = random.Random(seed)
    wal = Wal(path, segment_bytes=4_000)
    # What was there has landed, all or some of it: trimming goes on beside.
    replayed = wal.replay()
    number = first
    while True:
        group = [number + each for each in range(dice.randint(1, 5))]
        bodies = [_ANSWER.pack(each) * dice.randint(1, 40) for each in group]
        wal.make_room(sum(RECORD_BYTES + len(body) for body in bodies))
        wal.append((0, number, body) for number, body in zip(wal.take_numbers(0, len(bodies)), bodies, strict=True))
        os.write(answers, _ANSWER.pack(group[-1]))
        number = group[-1] + 1
        if replayed and dice.random() < 0.2:
            wal.landed([replayed.pop(0).segment])
            wal.trim()


@pytest.mark.spec("5.5")
def test_a_killed_process_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    seed = run_seed()
    dice = random.Random(seed)
    first = 0
    for kill in range(KILLS):
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(out)
                _write(tmp_path, first, into, seed + kill)
            finally:
                os._exit(1)
        os.close(into)
        time.sleep(dice.uniform(0.02, 0.25))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raw = b""
        while part := os.read(out, 65_536):
            raw += part
        os.close(out)
        answered = _ANSWER.unpack(raw[-8:])[0] if raw else first - 1
        wal = Wal(tmp_path)
        found = [_ANSWER.unpack(logged.body[:8])[0] for logged in wal.replay()]
        wal.close()
        assert found == list(range(found[0], found[-1] + 1)) if found else answered < 0, f"seed {seed}"
        assert not found or found[-1] >= answered, f"seed {seed}"
        first = (found[-1] if found else -1) + 1
    assert first > KILLS, f"hardly anything was written, seed {seed}"
