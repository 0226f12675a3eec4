"""Names that were parsed before: most callers use few queues, again and again."""

from holdfast.model.names import DEFAULT, QueueRef, parse_name

_MOST_REFS = 10_000


class Names:
    def __init__(self) -> None:
        self._refs: dict[tuple[str, str | None], QueueRef] = {}

    def ref(self, tenant: str, queue: str | None) -> QueueRef:
        ref = self._refs.get((tenant, queue))
        if ref is None:
            ref = QueueRef(parse_name("tenant", tenant), DEFAULT if queue is None else parse_name("queue", queue))
            if len(self._refs) >= _MOST_REFS:
                self._refs.clear()
            self._refs[tenant, queue] = ref
        return ref
