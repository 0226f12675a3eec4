"""The async API has the names of the blocking one: a producer and two consumers on one event loop."""

import asyncio

import holdfast


async def produce(queue: holdfast.AsyncQueue, count: int) -> None:
    for page in range(count):
        await queue.enqueue({"page": page})


async def consume(queue: holdfast.AsyncQueue, name: str) -> int:
    done = 0
    while messages := await queue.claim(limit=4, wait=0.2):
        for message in messages:
            async with message:  # acked when the block ends, nacked when it raises
                await asyncio.sleep(0.01)
                done += 1
    print(f"{name} is done")
    return done


async def main() -> None:
    async with holdfast.open_async("memory://") as hf:
        pages = hf.queue("pages")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce(pages, 20))
            consumers = [tasks.create_task(consume(pages, name)) for name in ("ada", "grace")]
        print(f"fetched {sum(each.result() for each in consumers)} pages")


asyncio.run(main())
