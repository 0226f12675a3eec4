"""Parsed queue names, kept because most callers use few queues again and again."""

from holdfast.model.names import DEFAULT, QueueRef, parse_name

_MAX_REFS = 10_000


class QueueRefs:
    """A bounded cache of queue references by the names that callers give."""

    def __init__(self) -> None:
        self._refs: dict[tuple[str, str | None], QueueRef] = {}

    def ref(self, tenant: str, queue: str | None) -> QueueRef:
        """Return the reference; None is the queue `default`. Raise `InvalidName` for a name that is not one."""
        ref = self._refs.get((tenant, queue))
        if ref is None:
            ref = QueueRef(parse_name("tenant", tenant), DEFAULT if queue is None else parse_name("queue", queue))
            if len(self._refs) >= _MAX_REFS:
                self._refs.clear()
            self._refs[tenant, queue] = ref
        return ref
