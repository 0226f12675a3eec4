"""For our tests and our users': a clock moved by hand, handlers under test, the store laws, the fault store.

`holdfast.testing.proxy` has a network that fails as it is told.
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
