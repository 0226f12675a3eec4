"""Convert bucket errors, retry conflicting writes, and bound concurrency."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import Bucket, ObjectMissing, PreconditionFailed, StoredObject, Unanswered

T = TypeVar("T")
R = TypeVar("R")

# Concurrent requests of one call.
AT_ONCE = 32
# Attempts of a call whose documents other processes keep changing.
TRIES = 50


class Busy(Exception):
    """The document is part of a multi-document step that is not decided yet."""

    def __init__(self, step: str | None = None) -> None:
        """`step` is the step's id, if known."""
        super().__init__("another change of several documents is under way" if step is None else f"step {step}")
        self.step = step


def unavailable(error: Exception) -> StoreUnavailable:
    """Return the `StoreUnavailable` for a failed request."""
    return StoreUnavailable(f"the bucket does not respond: {error}")


@contextmanager
def as_unavailable() -> Iterator[None]:
    """Raise `StoreUnavailable` in place of `Unanswered`."""
    try:
        yield
    except Unanswered as error:
        raise unavailable(error) from None


async def read_object(bucket: Bucket, key: str) -> StoredObject | None:
    """Return an object, or None if it does not exist. Raise `StoreUnavailable`."""
    try:
        with as_unavailable():
            return await bucket.read(key)
    except ObjectMissing:
        return None


async def retry_conflicts(
    attempt: Callable[[], Awaitable[T]],
    target: str,
    pause: Callable[[Busy], Awaitable[None]] | None = None,
    *,
    tries: int = TRIES,
    on: tuple[type[Exception], ...] = (PreconditionFailed, Busy),
) -> T:
    """Return the result of `attempt`, which is repeated while it raises one of `on`.

    The next try follows at once after `PreconditionFailed`. After `Busy` it follows once `pause` returns, usually
    `CasDocuments.pause`; JSON documents are never part of a step, and need no pause. Each attempt must read again what
    it changes. After the last try, raise `StoreUnavailable`; its message names `target`, the thing that kept changing.
    """
    for _ in range(tries):
        try:
            return await attempt()
        except on as error:
            if pause is not None and isinstance(error, Busy):
                await pause(error)
    raise StoreUnavailable(f"gave up after {tries} conflicting writes to {target}; try again")


async def run_concurrently(items: Iterable[T], do: Callable[[T], Awaitable[R]], at_once: int = AT_ONCE) -> list[R]:
    """Return the results of `do` for all items, in order. At most `at_once` calls run at a time.

    Raise the first error once all calls have ended.
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
