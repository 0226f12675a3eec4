"""Waiting only for what has to be waited for.

Most of what a call awaits ends in its first step: its body came with its headers, its claim finds something. A timer or
a task beside it is made only for what does not.
"""

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class RemainingSteps(Generic[T]):
    """The rest of something awaited whose first step was taken."""

    __slots__ = ("_step", "_waits_for")

    def __init__(self, step: Generator[Any, Any, T] | Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._step = step
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, None, T]:
        waits_for = self._waits_for
        while True:
            interruption: BaseException | None = None
            try:
                yield waits_for
            except BaseException as error:
                interruption = error
            try:
                # Into the step, where whoever waits lets go of what it waits for: it may wait again, or end well.
                waits_for = self._step.send(None) if interruption is None else self._step.throw(interruption)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                # An error that ends the step leads back to this frame.
                interruption = None

    async def wait(self) -> T:
        return await self


class StepsDone(Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


def begin(work: Awaitable[T]) -> StepsDone[T] | RemainingSteps[T]:
    """Take the first step: the result, or what is left to be awaited."""
    step = work.__await__()
    try:
        waits_for = next(step)
    except StopIteration as done:
        return StepsDone(done.value)
    return RemainingSteps(step, waits_for)
