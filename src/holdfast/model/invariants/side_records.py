"""The invariants of the records beside messages: queues and policies, counts, keys, claim ledgers and schedules."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.model.errors import InvalidArgument, InvalidName
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.invariants.messages import TOKEN_BYTES, check_id
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef, parse_name
from holdfast.model.policy import QueuePolicy, TenantConfig, merge
from holdfast.model.schedules import Schedule


def check_names(ref: QueueRef) -> Iterator[Problem]:
    """Check the names of a tenant and a queue (SPEC 1.2)."""
    for field, name in (("tenant", ref.tenant), ("queue", ref.queue)):
        try:
            parse_name(field, name)
        except InvalidName as error:
            yield Problem(DamageKind.NAME_MISMATCH, f"its {field} has a name that cannot be given: {error.message}")


def check_policy(policy: QueuePolicy) -> Iterator[Problem]:
    """Check that every number of a policy is one that `set_policy` accepts."""
    try:
        merge(QueuePolicy(), _given(policy))
    except InvalidArgument as error:
        yield Problem(DamageKind.QUEUE_UNREADABLE, f"its policy is invalid: {error.message}")


def check_config(tenant: str, config: TenantConfig) -> Iterator[Problem]:
    """Check that every number of a tenant's configuration is one that can be set."""
    try:
        merge(TenantConfig(), _given(config))
    except InvalidArgument as error:
        yield Problem(
            DamageKind.TENANT_UNREADABLE, f"the configuration of tenant {tenant!r} is invalid: {error.message}"
        )


def _given(config: msgspec.Struct) -> dict[str, object]:
    """Return the fields that have a value, as documents."""
    fields: dict[str, object] = {}
    for name, value in msgspec.to_builtins(config).items():
        if isinstance(value, dict):
            fields[name] = {inner: each for inner, each in value.items() if each is not None}
        elif value is not None:
            fields[name] = value
    return fields


def check_counts(stored: Mapping[str, int], found: Mapping[str, int]) -> Iterator[Problem]:
    """Compare the counts of a queue with those of a full scan."""
    for name, number in found.items():
        if stored.get(name, 0) != number:
            yield Problem(
                DamageKind.COUNT_MISMATCH, f"its counters say {name} {stored.get(name, 0)}, a full scan finds {number}"
            )


def check_key(key: str, id: int, now_ms: int) -> Iterator[Problem]:
    """Check that an idempotency key names a message whose id was given."""
    if any(check_id(id, now_ms)):
        yield Problem(
            DamageKind.KEY_ID_INVALID, f"idempotency key {key!r} names a message with an id that was never given: {id}"
        )


def check_open_claim(
    consumer: str, number: int, receipts: Sequence[Receipt], closed_upto: int | None
) -> Iterator[Problem]:
    """Check an open claim of a ledger. `closed_upto` is the highest closed number of the consumer, if any."""
    if closed_upto is not None and number <= closed_upto:
        yield Problem(DamageKind.LEDGER_CLOSED, f"claim {number} of ledger {consumer} is open, but was closed")
    if any(len(receipt.token) != TOKEN_BYTES for receipt in receipts):
        yield Problem(DamageKind.LEDGER_UNREADABLE, f"claim {number} of ledger {consumer} has an invalid receipt")


def check_schedule(stored_name: str, schedule: Schedule) -> Iterator[Problem]:
    """Check a schedule that is stored under `stored_name`."""
    name = schedule.name
    if name != stored_name:
        yield Problem(DamageKind.SCHEDULE_INVALID, f"schedule {name!r} is stored under {stored_name!r}")
    if (schedule.cron is None) == (schedule.every_ms is None):
        yield Problem(DamageKind.SCHEDULE_INVALID, f"schedule {name!r} must have either a cron line or an interval")
    if schedule.paused and schedule.next_at is not None:
        yield Problem(DamageKind.SCHEDULE_INVALID, f"schedule {name!r} is paused, but has a next tick")
    if schedule.last_at is not None and schedule.next_at is not None and schedule.next_at <= schedule.last_at:
        yield Problem(DamageKind.SCHEDULE_INVALID, f"schedule {name!r} would fire its last tick again")
