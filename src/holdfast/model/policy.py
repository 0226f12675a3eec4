"""The configuration of queues and tenants, with the defaults of SPEC 2 and 3."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.durations import MAX_MS

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


class OnTtl(StrEnum):
    """The fate of a message whose TTL has ended."""

    DEAD_LETTER = "dead_letter"
    DROP = "drop"


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of operations and bytes; None is unlimited.

    `burst_s` is the time over which an unused rate adds up: `burst_s` times the rate may be used at once.
    """

    write_ops_per_s: float | None = None
    write_bytes_per_s: float | None = None
    read_ops_per_s: float | None = None
    read_bytes_per_s: float | None = None
    burst_s: float = 1.0


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy of one queue: leases, retries, TTL, idempotency and limits."""

    lease_ms: int = 5_000
    max_lease_ms: int = 12 * _HOUR_MS
    max_retries: int = 3
    backoff_base_ms: int = 500
    backoff_cap_ms: int = 30_000
    ttl_ms: int | None = None
    on_ttl: OnTtl = OnTtl.DEAD_LETTER
    dedup_window_ms: int = _DAY_MS
    keep_succeeded_ms: int = 0
    max_claims: int | None = None
    max_enqueues: int | None = None
    limits: Limits = Limits()


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that a tenant may store; None is unlimited."""

    max_messages: int | None = None
    max_bytes: int | None = None
    max_message_bytes: int | None = None
    max_queues: int | None = 10_000
    default_ttl_ms: int | None = None

    @property
    def limits_messages(self) -> bool:
        """Return whether a new message may be refused, for its size or for the tenant's totals."""
        return self.max_message_bytes is not None or self.limits_totals

    @property
    def limits_totals(self) -> bool:
        """Return whether the tenant's totals must be known before a message may be added."""
        return self.max_messages is not None or self.max_bytes is not None


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of one tenant. `weight` is its share of the server when several tenants are waiting."""

    weight: int = 1
    limits: Limits = Limits()
    quotas: Quotas = Quotas()
    journal_retention_ms: int | None = None


_Config = TypeVar("_Config", bound=msgspec.Struct)

# Fields for which 0 makes no sense; their smallest value is 1.
_AT_LEAST_ONE = frozenset({"lease_ms", "max_lease_ms", "ttl_ms", "default_ttl_ms", "weight", "journal_retention_ms"})


def merge(config: _Config, changes: Mapping[str, Any]) -> _Config:
    """Return `config` with the given fields changed. The other fields stay, in nested documents too.

    Raise `InvalidArgument`, which names the field, for an unknown field, a wrong type or a number out of range.
    """
    merged = msgspec.to_builtins(config)
    _merge_into(merged, changes, msgspec.to_builtins(type(config)()), "")
    try:
        result = msgspec.convert(merged, type(config))
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`")
        raise InvalidArgument(f"{field}: {text}", field=field) from None
    return result


def _merge_into(target: dict[str, Any], changes: Mapping[str, Any], known: Mapping[str, Any], path: str) -> None:
    for name, value in changes.items():
        where = f"{path}{str(name)[:80]}"
        if name not in known:
            raise InvalidArgument(
                f"{where!r} is not a field here; the fields are {', '.join(sorted(known))}", field=where
            )
        if isinstance(known[name], dict):
            nested = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
            if not isinstance(nested, Mapping):
                raise InvalidArgument(f"{where} must be a document of fields", field=where)
            _merge_into(target[name], nested, known[name], f"{where}.")
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            least = 1 if name in _AT_LEAST_ONE else 0
            if not least <= value <= MAX_MS:
                raise InvalidArgument(f"{where} {value} must be at least {least} and at most {MAX_MS}", field=where)
        target[name] = value
