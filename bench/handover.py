"""The cost of a blocking call that is stepped in the calling thread, and of one that is handed to a loop's thread."""

import asyncio
import threading

import holdfast
from bench.measure import paired
from bench.report import Figure

CALLS = 2_000


def measure() -> Figure:
    """Enqueue, claim and ack of single messages on `memory://`: three calls that need not wait."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    on_loop = holdfast.open_async("memory://")
    asyncio.run_coroutine_threadsafe(on_loop.__aenter__(), loop).result()
    far = on_loop.queue("bench")

    async def enqueue() -> None:
        await far.enqueue(b"x")

    async def claim_and_keep() -> None:
        kept.extend(await far.claim())

    async def ack() -> None:
        await kept.pop().ack()

    kept: list[holdfast.AsyncMessage] = []

    def handed_over() -> None:
        for _ in range(CALLS // 3):
            for call in (enqueue, claim_and_keep, ack):
                asyncio.run_coroutine_threadsafe(call(), loop).result()

    with holdfast.open("memory://") as hf:
        near = hf.queue("bench")

        def stepped() -> None:
            for _ in range(CALLS // 3):
                near.enqueue(b"x")
                [message] = near.claim()
                message.ack()

        pair = paired(stepped, handed_over, operations=CALLS)
    asyncio.run_coroutine_threadsafe(on_loop.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    return Figure(
        "blocking call that need not wait, in the calling thread",
        f"{pair.subject_us:.1f} us",
        "handed to a loop's thread",
        f"{pair.baseline_us:.1f} us",
        pair.speed_ratio,
        goal=2,
    )
