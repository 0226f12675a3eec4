"""Who is calling, by its credential."""

from collections.abc import Mapping
from typing import Protocol

from holdfast.service.access import ANYONE, Caller


class Identity(Protocol):
    async def caller_of(self, headers: Mapping[bytes, bytes], peer: object | None) -> Caller: ...


class Open:
    """No identities are configured: whoever gets here may do everything."""

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: object | None) -> Caller:
        return ANYONE
