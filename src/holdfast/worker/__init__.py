"""Handlers that are fed from queues, kept alive and stopped with care."""

from holdfast.worker.exceptions import Defer, LeaseLost, Reject, Retry, WorkerStuck
from holdfast.worker.outcome import Outcome, OutcomeKind
from holdfast.worker.target import load_target, run_target
from holdfast.worker.worker import Worker

__all__ = [
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
