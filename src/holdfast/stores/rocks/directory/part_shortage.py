"""Steps that wait until a process has a larger part of a tenant's quotas."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.model.errors import StoreUnavailable

T = TypeVar("T")

# Processes that race for the last messages of a quota take parts of it back from one another.
_TRIES = 50


class PartShortage(StoreUnavailable):
    """This process's part of a tenant's quotas is too small for the messages of a step, which has changed nothing.

    Only a process with a portion of a divided store raises it (`portions/tenants.py`).
    """

    def __init__(self, tenant: str, obtain: Callable[["PartShortage"], Awaitable[None]]) -> None:
        super().__init__(f"the quotas of tenant {tenant} are being divided anew: try again")
        self.tenant = tenant
        self._obtain = obtain

    async def obtain(self) -> None:
        """Raise the part. Raise `OverQuota` or `PayloadTooLarge` if the quotas have no room."""
        await self._obtain(self)


async def with_quota(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`, which is begun again once the process has the part of the quotas that it lacked."""
    for _ in range(_TRIES):
        try:
            return await work()
        except PartShortage as short:
            await short.obtain()
    raise StoreUnavailable(f"gave up after {_TRIES} concurrent changes of the quotas of a tenant; try again")
