"""Run an awaitable up to its first wait, and avoid a timer or a task if it never waits.

Most awaitables of a call finish in their first step: the body arrived together with the headers, or the claim finds a
message. Only the others need a timer or a task.
"""

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class RemainingSteps(Generic[T]):
    """The remaining steps of an awaitable whose first step was taken."""

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
                # The step handles the interruption itself: it may clean up and end, or wait again.
                waits_for = self._step.send(None) if interruption is None else self._step.throw(interruption)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                # Avoids a reference cycle: the traceback of an error that ends the step refers to this frame.
                interruption = None

    async def wait(self) -> T:
        """Return the result once all steps are done."""
        return await self


class StepsDone(Generic[T]):
    """The result of an awaitable that finished in its first step."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


def begin(work: Awaitable[T]) -> StepsDone[T] | RemainingSteps[T]:
    """Take the first step of an awaitable. Return its result, or its remaining steps if it has to wait."""
    step = work.__await__()
    try:
        waits_for = next(step)
    except StopIteration as done:
        return StepsDone(done.value)
    return RemainingSteps(step, waits_for)
