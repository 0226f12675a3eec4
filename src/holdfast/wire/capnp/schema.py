"""The Cap'n Proto schema, its errors, and pycapnp's event loop beside asyncio's.

Importing this module loads pycapnp, which is an extra: `pip install 'holdfast[capnp]'`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from typing import Any
from weakref import WeakKeyDictionary

import capnp
import msgspec

from holdfast.model.errors import ERRORS_BY_CODE, HoldfastError, Internal
from holdfast.wire.errors import retry_after_ms


def _load() -> Any:
    with as_file(files("holdfast.wire.capnp") / "holdfast.capnp") as path:
        return capnp.load(str(path))


SCHEMA: Any = _load()
VERSION: int = SCHEMA.version
FOR_EVER: int = SCHEMA.forEver


@dataclass(slots=True)
class _Running:
    """A pycapnp loop that this module started, and the number of its users."""

    stack: AsyncExitStack
    users: int = 0


@dataclass(slots=True)
class _Loops:
    """The asyncio loops beside which this module has started a pycapnp loop."""

    running: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Running]" = field(default_factory=WeakKeyDictionary)


_loops = _Loops()


@asynccontextmanager
async def kj_loop() -> AsyncIterator[None]:
    """Run pycapnp's loop on the running asyncio loop until its last user leaves this context.

    An asyncio loop can have only one. A door and its clients share it, and if the program has already started one, that
    one is used.
    """
    loop = asyncio.get_running_loop()
    running = _loops.running.get(loop)
    if running is None:
        if hasattr(loop, "_kj_loop"):  # the program started one itself
            yield
            return
        running = _loops.running[loop] = _Running(AsyncExitStack())
        await running.stack.enter_async_context(capnp.kj_loop())
    running.users += 1
    try:
        yield
    finally:
        running.users -= 1
        if not running.users:
            del _loops.running[loop]
            await running.stack.aclose()


# --- Errors --------------------------------------------------------------------------------------------------------


def write_error(builder: Any, error: HoldfastError) -> None:
    """Write an error into the schema's `Error`."""
    builder.code = error.code
    builder.message = error.message
    facts = {name: _plain(value) for name, value in error.facts.items() if name != "retry_after_ms"}
    if facts:
        builder.facts = msgspec.json.encode(facts)
    builder.retryAfterMs = retry_after_ms(error) or 0


def read_error(reader: Any) -> HoldfastError:
    """Return the error in the schema's `Error`. Facts that cannot be decoded are dropped."""
    try:
        facts = _facts.decode(bytes(reader.facts) or b"{}")
    except msgspec.DecodeError:
        facts = {}
    if reader.retryAfterMs:
        facts["retry_after_ms"] = reader.retryAfterMs
    return ERRORS_BY_CODE.get(reader.code, Internal)(reader.message, **facts)


_facts = msgspec.json.Decoder(dict[str, Any])


def _plain(value: object) -> Any:
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
