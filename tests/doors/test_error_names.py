"""Every door sends each error by the same name, with the same facts."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.model.errors import ERRORS_BY_CODE, HoldfastError
from tests.doors.capnp_serving import serve_capnp
from tests.doors.framed.serving import serve_framed
from tests.doors.serving import serve

DOORS = {"http": serve, "framed": serve_framed, "capnp": serve_capnp}


class Door:
    """One door over a core whose `stats` fails as the test says, and a client of it that does not try again."""

    def __init__(self, core: Any, hf: holdfast.AsyncHoldfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self._core = core
        self._queue = hf.queue("mail", tenant="acme")
        self._monkeypatch = monkeypatch

    async def error_of(self, raised: Exception) -> HoldfastError:
        """Return the error that a caller gets if the service raises this one."""

        async def fail(*_: object) -> None:
            raise raised

        self._monkeypatch.setattr(self._core.inspection, "stats", fail)
        with pytest.raises(HoldfastError) as caught:
            await self._queue.stats()
        return caught.value


@pytest.fixture(params=DOORS)
async def door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with AsyncExitStack() as stack:
        server: Any = await stack.enter_async_context(DOORS[request.param](SystemClock()))
        url = f"holdfast://127.0.0.1:{server.port}" if request.param == "framed" else server.url
        hf = await stack.enter_async_context(holdfast.open_async(url, retries=0))
        yield Door(server.core, hf, monkeypatch)


@pytest.mark.spec("3.11")
@pytest.mark.parametrize("code", ERRORS_BY_CODE)
async def test_every_door_sends_each_error_by_its_name_with_its_facts(door: Door, code: str) -> None:
    kind = ERRORS_BY_CODE[code]
    error = await door.error_of(kind("do something else", id="7"))
    assert (type(error), error.code) == (kind, code)
    assert "do something else" in error.message
    assert error.facts["id"] == "7"


@pytest.mark.spec("3.11")
async def test_no_door_shows_the_text_of_an_unexpected_error(door: Door) -> None:
    error = await door.error_of(RuntimeError("secret"))
    assert error.code == "internal"
    assert "secret" not in f"{error.message} {error.facts}"
