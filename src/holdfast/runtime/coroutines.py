"""Coroutines that wait on any runtime, and the runner of coroutines that never wait."""

from holdfast.runtime.contract import Runtime, T, Ticket, Work


async def sleep_until(runtime: Runtime, at_ms: int) -> None:
    """Wait until the runtime's clock reaches `at_ms`."""
    ticket = runtime.ticket()

    def resume() -> None:
        # The timer may go off between the cancellation of the caller and its next step.
        if not ticket.done():
            ticket.set_result(None)

    timer = runtime.call_at(at_ms, resume)
    try:
        await ticket
    finally:
        timer.cancel()


async def yield_to_others(runtime: Runtime) -> None:
    """Pause a long operation until every other caller that can continue has had a turn."""
    await sleep_until(runtime, runtime.clock.now_ms())


async def shield(runtime: Runtime, work: Work[T]) -> T:
    """Return the result of a coroutine that continues if its caller is cancelled.

    A change must not be separated from the steps that have to follow it.
    """
    ticket: Ticket[T] = runtime.ticket()

    async def run() -> None:
        try:
            value = await work
        except Exception as error:
            if ticket.done():
                raise  # the caller was cancelled, so the runtime logs the error
            ticket.set_exception(error)
        else:
            if not ticket.done():
                ticket.set_result(value)

    runtime.spawn(run())
    return await ticket


def run_inline(work: Work[T]) -> T:
    """Return the result of a coroutine that never suspends. Raise `RuntimeError` if it does."""
    try:
        work.send(None)
    except StopIteration as finished:
        value: T = finished.value
        return value
    work.close()
    raise RuntimeError("a coroutine that must not suspend was suspended")
