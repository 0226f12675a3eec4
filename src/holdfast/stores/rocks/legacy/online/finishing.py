"""Finishing a move while no program uses the store: `holdfast db migrate` on a directory that was opened before."""

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.clock import Clock, SystemClock
from holdfast.dice import SystemDice
from holdfast.model.errors import InvalidArgument
from holdfast.runtime import LoopRuntime
from holdfast.stores.contract import Listener
from holdfast.stores.rocks.legacy.kept_keys import UNREADABLE
from holdfast.stores.rocks.legacy.online.moving_store import MovingStore

_RETENTION_MS = 7 * 86_400_000


async def finish_move(
    path: str | os.PathLike[str],
    listener: Listener,
    report: Callable[[int], None],
    *,
    accept_unreadable: int,
    clock: Clock | None = None,
) -> int:
    """Move what is left, and return the number of messages that were moved in all.

    Raise `InvalidArgument` if keys cannot be read and their number was not accepted; they stay where they are.
    """
    store = MovingStore(path, SystemDice(), journal_retention_ms=_RETENTION_MS, accept_unreadable=accept_unreadable)
    runtime = LoopRuntime(clock or SystemClock())
    try:
        await store.open(listener, runtime)
        try:
            moved, unreadable, examples = await store.finish_move(report)
        finally:
            await store.close()
    finally:
        await runtime.aclose()
    if unreadable:
        text = f"{path}: all messages are moved, and {unreadable:,} keys or values cannot be read"
        if accept_unreadable:
            text += f"; --accept-unreadable {accept_unreadable} is a different number"
        raise InvalidArgument(
            f"{text}. For example: {'; '.join(examples)}. They stay in {Path(path) / 'legacy'}. If you do not need "
            f"them, give --accept-unreadable {unreadable}: they are kept in {Path(path) / UNREADABLE}",
            field="accept_unreadable",
            path=str(path),
            unreadable=unreadable,
            examples=examples,
        )
    return moved
