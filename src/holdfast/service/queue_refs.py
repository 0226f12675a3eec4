"""Parse the names of queues. Parsed names are cached, because most callers use the same few queues again and again."""

from holdfast.model.names import DEFAULT, QueueRef, parse_name
from holdfast.wire.requests import NamesRequest

_MAX_REFS = 10_000


class QueueRefs:
    """A bounded cache of queue references, by the given names."""

    def __init__(self) -> None:
        self._refs: dict[tuple[str, str | None], QueueRef] = {}

    def ref(self, tenant: str, queue: str | None) -> QueueRef:
        """Return the reference to a queue; None is the queue `default`. Raise `InvalidName` for an invalid name."""
        ref = self._refs.get((tenant, queue))
        if ref is None:
            ref = QueueRef(parse_name("tenant", tenant), DEFAULT if queue is None else parse_name("queue", queue))
            if len(self._refs) >= _MAX_REFS:
                self._refs.clear()
            self._refs[tenant, queue] = ref
        return ref


def parse_names(request: NamesRequest, own_tenant: str) -> tuple[str | None, str | None]:
    """Return the tenant and the queue that a request names. `own_tenant` is the tenant of a queue without one.

    Raise `InvalidName`.
    """
    tenant = None if request.tenant is None else parse_name("tenant", request.tenant)
    queue = None if request.queue is None else parse_name("queue", request.queue)
    return own_tenant if tenant is None and queue is not None else tenant, queue
