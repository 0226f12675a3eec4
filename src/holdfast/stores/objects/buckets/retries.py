"""Calls to a bucket that another process may defeat: repeated, and ended by an error that a caller understands."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import Bucket, ObjectMissing, PreconditionFailed, Read, Unanswered

T = TypeVar("T")
R = TypeVar("R")

# Requests of one call that are under way at once.
AT_ONCE = 32
# How often a call begins again because another process changed what it had read.
TRIES = 50
# Until a step that another makes has ended.
_PAUSE_S = 0.02


class Busy(Exception):
    """A step is being made that writes this sheet: later."""


def unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the bucket does not answer: {error}")


@contextmanager
def answered() -> Iterator[None]:
    """Raise `StoreUnavailable` if the bucket does not answer a call made within."""
    try:
        yield
    except Unanswered as error:
        raise unavailable(error) from None


async def read_object(bucket: Bucket, key: str) -> Read | None:
    """Return an object and its stamp, or None if there is none; raise `StoreUnavailable`."""
    try:
        with answered():
            return await bucket.read(key)
    except ObjectMissing:
        return None


async def until_unchanged(
    attempt: Callable[[], Awaitable[T]],
    gave_up: str,
    *,
    tries: int = TRIES,
    on: tuple[type[Exception], ...] = (PreconditionFailed, Busy),
) -> T:
    """Return the result of `attempt`, repeated while it raises one of `on`.

    The next try follows at once after `PreconditionFailed`, and after a pause while another process's step is under
    way. Each attempt must read again what it changes. Raise `StoreUnavailable` with the message `gave_up` after the
    last try.
    """
    for _ in range(tries):
        try:
            return await attempt()
        except on as error:
            if isinstance(error, Busy):
                await pause()
    raise StoreUnavailable(gave_up)


async def side_by_side(items: Iterable[T], do: Callable[[T], Awaitable[R]], at_once: int = AT_ONCE) -> list[R]:
    """Return the results of `do` for all items, in order; at most `at_once` calls run side by side.

    Raise the first error once all have ended.
    """
    turns = asyncio.Semaphore(at_once)

    async def one(item: T) -> R:
        async with turns:
            return await do(item)

    items = list(items)
    if len(items) == 1:
        return [await do(items[0])]
    results: list[R] = []
    for outcome in await asyncio.gather(*map(one, items), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


async def pause() -> None:
    await asyncio.sleep(_PAUSE_S)
