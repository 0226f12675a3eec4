"""Test tools for this project and its users: a manual clock, handler tests, store laws, a fault store, a fault proxy.

Nothing here may be imported by code that runs in production, nor import `holdfast.cli`.
Start in `handlers.py` to test a worker, in `laws/` to test a store and in `proxy.py` to test against a failing network.
"""

from holdfast.dice import SeededDice
from holdfast.testing.clock import ManualClock
from holdfast.testing.faults import HeldCalls, SeededFaults, with_faults, with_unwritable_verdicts
from holdfast.testing.handlers import HandlerTest
from holdfast.testing.subject import EmbeddedSubject, Subject

__all__ = [
    "EmbeddedSubject",
    "HandlerTest",
    "HeldCalls",
    "ManualClock",
    "SeededDice",
    "SeededFaults",
    "Subject",
    "with_faults",
    "with_unwritable_verdicts",
]
