"""The process that is killed with the store inside it: threads of producers, consumers and an operator.

`main("run", …)` goes on until it is killed. `main("drain", …)` takes what is there, says what was left, and closes.
"""

import os
import sys
import threading
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.server.embedded import open_blocking
from tests.machinery import history as h
from tests.machinery.kills.load import MAX_PAYLOAD, POLICY, QUEUES, Load, Steps, backlog_in, receipts_before

PRODUCERS = 2
CONSUMERS = 3
# Sessions write this many calls at most, so that numbers of calls never meet.
_CALLS_PER_SESSION = 10_000_000
_PAUSE_S = 0.005
_OPERATE_S = 0.02


def main(mode: str, directory: str, history: str, seed: str, session: str, durability: str, shards: str) -> None:
    threading.excepthook = _end
    known = receipts_before(Path(history))
    clock = SystemClock()
    recorder = h.Recorder(h.FileSink(Path(history)), clock.now_ms, int(session) * _CALLS_PER_SESSION)
    os.write(1, b"opening\n")
    settings = {"durability": durability, "max_payload": MAX_PAYLOAD, "shards": int(shards)}
    hf = open_blocking(directory, settings, clock=clock)
    recorder.say(h.Opened(session=int(session), durability=durability))
    caller = h.Caller(hf, recorder)
    backlog = 0
    for name in QUEUES:
        caller.set_policy(name, **POLICY)
        backlog += backlog_in(caller.count(name))
    os.write(1, b"ready\n")
    if mode == "drain":
        caller.drain(QUEUES)
        caller.read_journal()
        hf.close()
        return
    load = Load(int(seed), int(session), backlog, known, has_moves=int(shards) > 1)
    scripts = [(load.produce(number), 0.0) for number in range(PRODUCERS)]
    scripts += [(load.consume(number), 0.0) for number in range(CONSUMERS)]
    scripts.append((load.operate(), _OPERATE_S))
    threads = [threading.Thread(target=_run, args=(caller, *script)) for script in scripts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # until the kill


def _run(caller: h.Caller, script: Steps, every_s: float) -> None:
    never = threading.Event()
    step = next(script)
    while True:
        if step is None:
            never.wait(_PAUSE_S)
        answer = None if step is None else step(caller)
        if every_s:
            never.wait(every_s)
        step = script.send(answer)


def _end(raised: threading.ExceptHookArgs) -> None:
    """A thread that dies of an error must end the process: a load that quietly stops would prove nothing."""
    sys.__excepthook__(raised.exc_type, raised.exc_value or raised.exc_type(), raised.exc_traceback)
    os._exit(1)
