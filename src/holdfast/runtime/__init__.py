"""Run the core's coroutines, on an asyncio event loop or in the calling threads.

It knows nothing of messages, stores or services, and imports only `clock`.
Start with `contract.py`, then `threads.py`, in which each caller steps its own coroutine.
"""

from holdfast.runtime.contract import Runtime, Ticket, Work
from holdfast.runtime.coroutines import run_inline, shield, sleep_until, yield_to_others
from holdfast.runtime.loop import LoopRuntime
from holdfast.runtime.threads import ThreadRuntime

__all__ = [
    "LoopRuntime",
    "Runtime",
    "ThreadRuntime",
    "Ticket",
    "Work",
    "run_inline",
    "shield",
    "sleep_until",
    "yield_to_others",
]
