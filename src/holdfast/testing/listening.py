"""The end of a listener in a test, which must leave no connection behind it."""

import asyncio

# From a connection's arrival to the task that serves it.
_TURNS = 10


async def stop_listening(server: asyncio.Server) -> None:
    """Close it once whoever has arrived is served: asyncio forgets a connection whose listener is closed meanwhile, and
    leaves it open."""
    for each in server.sockets:
        asyncio.get_running_loop().remove_reader(each.fileno())
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    server.close()
