"""Fill a store and end as a killed process: `python -m tests.stores.rocks.formats.filled DIR SHARDS`.

Each `format_N.tar.xz` beside this file has a store that this program made with the version of Holdfast that wrote
format N, without RocksDB's own log of messages and its options. When the format changes, run the program with the last
version of the old format, and add its store.
"""

import os
import sys

import holdfast
from holdfast.dice import SeededDice
from holdfast.testing import ManualClock

LARGE = b"x" * (1 << 20) + b"large"


def fill(path: str, shards: int) -> None:
    """Enqueue and settle messages of every kind, as seen by `test_stored_formats.py`."""
    clock = ManualClock()
    hf = holdfast.open(path, clock=clock, dice=SeededDice(1), durability="os", max_payload=4 << 20, shards=shards)
    hf.tenant("acme").set(quotas={"max_messages": 100})
    mail = hf.queue("mail", tenant="acme")
    mail.set_policy(lease_ms=60_000, max_retries=1, keep_succeeded_ms=86_400_000)
    mail.enqueue("plain")
    mail.enqueue(b"\x00bytes")
    mail.enqueue("delayed", delay=3_600)
    mail.enqueue("dying", ttl=86_400)
    mail.enqueue("first", priority=1)
    mail.enqueue("keyed", key="k")
    mail.enqueue(["grouped 1", "grouped 2"], group="g")
    mail.enqueue(LARGE)
    mail.enqueue("with headers", headers={"a": "b"}, correlation_id="c-1", max_retries=7)
    clock.advance(1)
    mail.claim(limit=1, lease=3_000, owner="worker")
    states = hf.queue("states", tenant="acme")
    states.enqueue("held with state")
    [held] = states.claim(lease=3_000, state=True)
    held.save_state({"step": 1})
    fed = hf.queue("fed", tenant="acme")
    fed.enqueue("fed")
    fed.claim(lease=3_000, ledger=("consumer", 0))
    dead = hf.queue("dead", tenant="acme")
    dead.enqueue("dead")
    [doomed] = dead.claim()
    doomed.nack("broken", final=True)
    done = hf.queue("done", tenant="acme")
    done.set_policy(keep_succeeded_ms=86_400_000)
    done.enqueue("done")
    done.claim()[0].ack()
    done.schedule("nightly", cron="0 3 * * *", payload={"report": 1})
    hf.queue("many", tenant="globex").enqueue([b"%d" % number for number in range(50)])
    gone = hf.queue("gone", tenant="globex")
    gone.enqueue("gone")
    gone.claim()[0].ack()


if __name__ == "__main__":
    fill(sys.argv[1], int(sys.argv[2]))
    os._exit(0)
