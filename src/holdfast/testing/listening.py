"""A way to close a listener in a test that leaves no connection open."""

import asyncio

# More iterations of the event loop than asyncio needs from accepting a connection to starting the task that serves it.
_TURNS = 10


async def stop_listening(server: asyncio.Server) -> None:
    """Accept no more connections, wait until those already accepted have their tasks, and close the listener.

    If the listener were closed earlier, asyncio would lose track of such a connection and leave it open.
    """
    for each in server.sockets:
        asyncio.get_running_loop().remove_reader(each.fileno())
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    server.close()
