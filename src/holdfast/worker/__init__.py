"""Handlers that are fed from queues, kept alive and stopped with care."""

from holdfast.worker.control import Defer, LeaseLost, Reject, Retry
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
    "load_target",
    "run_target",
]
