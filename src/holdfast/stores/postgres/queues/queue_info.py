"""A queue as this server knows it, with the revisions that its statements are checked against."""

from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.stores.logic.quotas import default_ttl_ms
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.values import QueueRow

_encode = msgspec.msgpack.Encoder().encode
_decode_policy = msgspec.msgpack.Decoder(QueuePolicy).decode
_decode_config = msgspec.msgpack.Decoder(TenantConfig).decode


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue with its tenant's configuration, as one database has them.

    `key` is the queue's key in that database. `revision` and `tenant_revision` change with the queue's row and the
    tenant's.
    """

    ref: QueueRef
    shard: PostgresDatabase
    key: int
    row: QueueRow
    config: TenantConfig
    revision: int
    tenant_revision: int
    has_groups: bool
    highest_grouped: int

    @property
    def default_ttl_ms(self) -> int | None:
        """The TTL of messages without one of their own; None for no end."""
        return default_ttl_ms(self.row.policy, self.config.quotas)

    @property
    def has_quotas(self) -> bool:
        """Return whether the tenant has a quota of messages or bytes."""
        return self.config.quotas.limits_totals


def decode_queue_info(row: Any, shard: PostgresDatabase) -> QueueInfo:
    """Return the queue of a row that the statement `queue` returned."""
    ref = QueueRef(row["tenant"], row["queue"])
    return QueueInfo(
        ref=ref,
        shard=shard,
        key=row["key"],
        row=decode_queue_row(row),
        config=decode_config(row["config"]),
        revision=row["revision"],
        tenant_revision=row["tenant_revision"],
        has_groups=row["has_groups"],
        highest_grouped=row["highest_grouped"],
    )


def decode_queue_row(row: Any) -> QueueRow:
    """Return the contract's view of a row of `queues`."""
    return QueueRow(
        ref=QueueRef(row["tenant"], row["queue"]),
        tenant_id=row["tenant_id"],
        queue_id=row["queue_id"],
        policy=_decode_policy(row["policy"]),
        is_paused=row["is_paused"],
        drain_until=row["drain_until"],
    )


def encode_policy(policy: QueuePolicy) -> bytes:
    """Encode a queue's policy."""
    return _encode(policy)


def encode_config(config: TenantConfig) -> bytes:
    """Encode a tenant's configuration."""
    return _encode(config)


def decode_config(raw: bytes) -> TenantConfig:
    """Decode a tenant's configuration."""
    return _decode_config(raw)
