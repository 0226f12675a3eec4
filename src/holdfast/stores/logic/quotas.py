"""What a tenant may keep; the same for every store."""

from holdfast.model.errors import OverQuota, PayloadTooLarge
from holdfast.model.policy import QueuePolicy, Quotas


def check_quotas(tenant: str, quotas: Quotas, messages: int, size: int, added: list[int]) -> None:
    """Refuse messages of the sizes `added` if they would take the tenant, who keeps so much already, past a quota."""
    if quotas.max_message_bytes is not None and max(added, default=0) > quotas.max_message_bytes:
        raise PayloadTooLarge(
            f"a message has {max(added)} bytes, tenant {tenant} may send {quotas.max_message_bytes}",
            bytes=max(added),
            limit=quotas.max_message_bytes,
        )
    for name, limit, after in (
        ("max_messages", quotas.max_messages, messages + len(added)),
        ("max_bytes", quotas.max_bytes, size + sum(added)),
    ):
        if limit is not None and after > limit:
            raise OverQuota(f"tenant {tenant} would pass its {name} of {limit}", quota=name, limit=limit)


def check_room_for_queue(tenant: str, quotas: Quotas, queues: int) -> None:
    if quotas.max_queues is not None and queues >= quotas.max_queues:
        raise OverQuota(
            f"tenant {tenant} has {queues} queues, its max_queues", quota="max_queues", limit=quotas.max_queues
        )


def default_ttl_ms(policy: QueuePolicy, quotas: Quotas) -> int | None:
    """The TTL of a message that gives none: its queue's, else its tenant's."""
    return quotas.default_ttl_ms if policy.ttl_ms is None else policy.ttl_ms
