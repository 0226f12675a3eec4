"""Run handlers for messages: claim, extend leases while handlers run, send verdicts, and stop without loss.

Uses queues only through the client; knows no server and no store.
Start with `worker.py`, then `consumer.py` (claiming) and `execution/` (handling one message).
"""

from holdfast.worker.outcomes import Crash, Defer, LeaseLost, Outcome, OutcomeKind, Reject, Retry, WorkerStuck
from holdfast.worker.target import load_target, run_target
from holdfast.worker.worker import Worker

__all__ = [
    "Crash",
    "Defer",
    "LeaseLost",
    "Outcome",
    "OutcomeKind",
    "Reject",
    "Retry",
    "Worker",
    "WorkerStuck",
    "load_target",
    "run_target",
]
