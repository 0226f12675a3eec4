"""What all handlers of a running worker share."""

from typing import NamedTuple

from holdfast.client.blocking import Driver
from holdfast.dice import Dice
from holdfast.runtime import LoopRuntime
from holdfast.worker.consuming.connection import Link
from holdfast.worker.consuming.waiting import Reach, Stop
from holdfast.worker.hooks import Hooks


class Crew(NamedTuple):
    owner: str
    link: Link
    runtime: LoopRuntime
    dice: Dice
    hooks: Hooks
    reach: Reach
    stop: Stop
    # For tests: what runs the verbs of plain functions, which are then called inline and not in threads.
    inline: Driver | None = None
