"""What all handlers of a running worker share."""

from typing import NamedTuple

from holdfast.client.blocking import BlockingDriver
from holdfast.dice import Dice
from holdfast.runtime import LoopRuntime
from holdfast.worker.consuming.connection import WorkerConnection
from holdfast.worker.consuming.waiting import Reach, WorkerStop
from holdfast.worker.hooks import Hooks


class ConsumerContext(NamedTuple):
    owner: str
    link: WorkerConnection
    runtime: LoopRuntime
    dice: Dice
    hooks: Hooks
    reach: Reach
    stop: WorkerStop
    # For tests: what runs the verbs of plain functions, which are then called inline and not in threads.
    inline: BlockingDriver | None = None
