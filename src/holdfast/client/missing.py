"""Warnings for a caller that is about to wait for the messages of a queue that does not exist.

Waiting is correct, because the first message creates the queue. With a misspelt name, however, the caller would wait
for ever without notice.
"""

import difflib
from contextlib import suppress

from holdfast.client.transport import Transport
from holdfast.model.errors import HoldfastError, QueueNotFound
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.wire.operations import NAMES, POLICY, QUEUES, TENANTS
from holdfast.wire.requests import NamesRequest, Nothing

# The search runs once, when a command or a worker starts. These limits keep it short in a large store.
_MOST_NAMES = 10_000
_MOST_TENANTS = 50
_MOST_HINTS = 3


async def describe_missing(transport: Transport, ref: QueueRef, *, is_waiting: bool) -> str | None:
    """Return a sentence about a missing queue, or None if the queue exists or the caller may not know.

    The sentence lists queues of the tenant with similar names, and other tenants with a queue of this name, as far as
    the caller may see them.
    """
    try:
        if await read_numbers(transport, ref) is not None:
            return None
    except HoldfastError:
        # The claim that follows raises the same error, and its caller handles it.
        return None
    what = "does not exist yet; waiting for its first message" if is_waiting else "does not exist"
    return ". ".join([f"queue {ref} {what}", *await _hints(transport, ref)])


async def read_numbers(transport: Transport, ref: QueueRef) -> QueueNumbers | None:
    """Return the numbers of a queue, or None if it does not exist."""
    request = NamesRequest(tenant=ref.tenant, queue=ref.queue)
    for tenant in await transport.call(NAMES, QueueRef(), request):
        for queue in tenant.queues:
            return QueueNumbers(tenant.tenant_id, queue.queue_id)
    return None


async def _hints(transport: Transport, ref: QueueRef) -> list[str]:
    hints = []
    with suppress(HoldfastError):
        names = [each.queue for each in await transport.call(QUEUES, ref, Nothing())]
        if similar := difflib.get_close_matches(ref.queue, names[:_MOST_NAMES], _MOST_HINTS):
            hints.append(f"Existing queues with similar names: {', '.join(similar)}")
    with suppress(HoldfastError):
        if elsewhere := await _tenants_with(transport, ref):
            hints.append(f"A queue of that name exists in tenant {', '.join(elsewhere)}")
    return hints


async def _tenants_with(transport: Transport, ref: QueueRef) -> list[str]:
    """Return other tenants that have a queue of this name. Only an operator sees other tenants."""
    every = await transport.call(TENANTS, ref, Nothing())
    others = [each.tenant for each in every if each.tenant != ref.tenant]
    found: list[str] = []
    for tenant in others[:_MOST_TENANTS]:
        with suppress(QueueNotFound):
            await transport.call(POLICY, QueueRef(tenant, ref.queue), Nothing())
            found.append(tenant)
        if len(found) == _MOST_HINTS:
            break
    return found
