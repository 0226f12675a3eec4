"""kill -9 of a server that fires schedules: each tick has one message or none, as reported."""

import random
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import holdfast
from tests.crash.rocks import verify_store
from tests.server.served import Served

SCHEDULES = 20
KILLS = 4


@pytest.mark.spec("3.9")
@pytest.mark.slow
def test_killed_servers_fire_no_tick_twice_and_lose_none_they_fired(tmp_path: Path) -> None:
    dice, data = random.Random(5), tmp_path / "data"
    for number in range(KILLS):
        with Served("--data", data) as server:
            with holdfast.open(server.url) as hf:
                q = hf.queue("q")
                if not number:
                    for name in range(SCHEDULES):
                        q.schedule(f"s-{name}", every=1, payload=name)
                # Until a tick has come, and then into the middle of one of the next.
                q.claim(wait=30, lease=3_600)
            try:
                server.process.wait(dice.uniform(0.0, 2.0))
            except subprocess.TimeoutExpired:
                server.process.kill()
            server.process.wait(30)
        verify_store(data, f"kill {number}")
    with holdfast.open(str(data)) as hf:
        q = hf.queue("q")
        for schedule in q.schedules():
            q.schedule(schedule.name, paused=True)
        ticks: defaultdict[str, list[int]] = defaultdict(list)
        for each in q.list(limit=10_000):
            ticks[each.headers["schedule"]].append(int(each.headers["scheduled-at"]))
        reasons = Counter(event.reason for event in hf.journal(limit=10_000) if event.event == "enqueued")
        assert len(ticks) == SCHEDULES
        assert sum(map(len, ticks.values())) > SCHEDULES * KILLS / 2
        for schedule in q.schedules():
            fired = ticks[schedule.name]
            assert len(set(fired)) == len(fired)
            # By its anchor, whichever server fired it.
            assert {(each - fired[0]) % 1_000 for each in fired} == {0}
            assert schedule.last_at == max(fired)
            assert all(reasons[f"schedule {schedule.name}, tick {each}"] == 1 for each in fired)
        assert sum(reasons.values()) == sum(map(len, ticks.values()))
