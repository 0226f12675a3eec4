"""Quotas of tenants; the same for every store."""

from holdfast.model.errors import OverQuota, PayloadTooLarge
from holdfast.model.policy import QueuePolicy, Quotas


def check_quotas(tenant: str, quotas: Quotas, messages: int, size: int, added: list[int]) -> None:
    """Raise `PayloadTooLarge` or `OverQuota` if messages of the sizes `added` would exceed a quota of the tenant, which
    already stores `messages` messages of `size` bytes."""
    if quotas.max_message_bytes is not None and max(added, default=0) > quotas.max_message_bytes:
        raise PayloadTooLarge(
            f"a message has {max(added)} bytes, tenant {tenant} may send at most {quotas.max_message_bytes}",
            bytes=max(added),
            limit=quotas.max_message_bytes,
        )
    for name, limit, after in (
        ("max_messages", quotas.max_messages, messages + len(added)),
        ("max_bytes", quotas.max_bytes, size + sum(added)),
    ):
        if limit is not None and after > limit:
            raise OverQuota(f"tenant {tenant} would exceed its {name} of {limit}", quota=name, limit=limit)


def check_room_for_queue(tenant: str, quotas: Quotas, queues: int) -> None:
    """Raise `OverQuota` if the tenant may not have another queue."""
    if quotas.max_queues is not None and queues >= quotas.max_queues:
        raise OverQuota(
            f"tenant {tenant} has {queues} queues, the maximum of its quota max_queues: delete a queue, or raise it",
            quota="max_queues",
            limit=quotas.max_queues,
        )


def default_ttl_ms(policy: QueuePolicy, quotas: Quotas) -> int | None:
    """Return the TTL of a message without one of its own: its queue's, else its tenant's."""
    return quotas.default_ttl_ms if policy.ttl_ms is None else policy.ttl_ms
