"""The keyword arguments of the public API: their types, and their conversion into requests."""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Literal, TypedDict

from holdfast.client.payloads.encoding import encode
from holdfast.clock import Clock
from holdfast.dice import Dice
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import JSON, Draft, NewMessage, normalise_correlation_id
from holdfast.model.parsing.checks import plain
from holdfast.model.parsing.durations import Duration, Instant, parse_duration_ms, parse_instant_ms
from holdfast.model.policy import Limits, Quotas
from holdfast.model.requests import ClaimRequest
from holdfast.model.schedules import ScheduleChange

# A bearer token, or a function that returns the current one.
Token = str | Callable[[], str]


class EnqueueOptions(TypedDict, total=False):
    """The keywords of `Queue.enqueue`."""

    priority: int
    delay: Duration
    deliver_at: Instant
    ttl: Duration
    key: str
    group: str
    headers: Mapping[str, str]
    correlation_id: str
    max_retries: int
    content_type: str


class ScheduledOptions(TypedDict, total=False):
    """The keywords of `Queue.schedule` for the message that each tick enqueues."""

    priority: int
    ttl: Duration
    group: str
    headers: Mapping[str, str]
    correlation_id: str
    max_retries: int
    content_type: str


# The default of a payload argument, because None is a payload.
NOT_GIVEN: Any = object()


class ClaimOptions(TypedDict, total=False):
    """The keywords of `Queue.claim`."""

    wait: Duration | None
    lease: Duration
    owner: str
    state: bool
    on_close_delay: Duration
    stream: bool | None
    ledger: tuple[str, int]


class LimitOptions(TypedDict, total=False):
    """The rate limits of a tenant or a queue; None removes a limit."""

    write_ops_per_s: float | None
    write_bytes_per_s: float | None
    read_ops_per_s: float | None
    read_bytes_per_s: float | None
    burst_s: float


class QuotaOptions(TypedDict, total=False):
    """The quotas of a tenant; None removes a quota."""

    max_messages: int | None
    max_bytes: int | None
    max_message_bytes: int | None
    max_queues: int | None
    default_ttl_ms: int | None


class PolicyOptions(TypedDict, total=False):
    """The keywords of `Queue.set_policy`: the fields of a queue's policy."""

    lease_ms: int
    max_lease_ms: int
    max_retries: int
    backoff_base_ms: int
    backoff_cap_ms: int
    ttl_ms: int | None
    on_ttl: Literal["dead_letter", "drop"]
    dedup_window_ms: int
    keep_succeeded_ms: int
    max_claims: int | None
    max_enqueues: int | None
    limits: LimitOptions | Limits


class TenantOptions(TypedDict, total=False):
    """The keywords of `Tenant.set`: the fields of a tenant's configuration."""

    weight: int
    limits: LimitOptions | Limits
    quotas: QuotaOptions | Quotas
    journal_retention_ms: int | None


class ServerOptions(TypedDict, total=False):
    """The keywords of `holdfast.open` for a server's URL."""

    token: Token | None
    timeout: Duration
    retries: int
    pool: int
    wait_round: Duration | None
    tls_ca: str | PathLike[str]
    tls_cert: str | PathLike[str]
    tls_key: str | PathLike[str]


class StoreOptions(TypedDict, total=False):
    """The keywords of `holdfast.open` for a directory or a store's URL."""

    durability: Literal["fsync", "os"]
    shards: int
    checkpoint_bytes: int | str
    legacy_read_only: bool
    reopen_after: Duration
    journal_retention: Duration
    auto_create: bool
    max_payload: int | str
    shard_map: Literal["slots", "fnv-mod"]
    pg_pool: int
    pg_lock_timeout: Duration
    pg_statement_timeout: Duration
    redis_url: str
    wal_dir: str
    on_redis_down: Literal["fail", "direct"]
    flusher: Literal["server", "spark"]
    flush_interval: Duration
    flush_batch: int
    prefetch_batch: int
    queue_max_consumers: int
    queue_poll_interval: Duration
    queue_poll_jitter: Duration
    queue_resilient_poll_interval: Duration
    disk_queue_watch: bool
    disable_mem_queue_watch: bool
    clock_skew: Duration
    clock: Clock
    dice: Dice


class OpenOptions(ServerOptions, StoreOptions, total=False):
    """The keywords of `holdfast.open`."""


def make_drafts(payload: Any, options: Mapping[str, Any]) -> list[Draft]:
    """Return one draft for each payload. The options of a `NewMessage` take precedence over those of the call."""
    payloads = payload if isinstance(payload, list) else [payload]
    if "key" in options and options["key"] is not None and isinstance(payload, list) and len(payload) != 1:
        raise InvalidArgument(
            "one key for several payloads would drop all but the first: give each its own with NewMessage(payload, "
            "key=...)",
            field="key",
        )
    if options:
        return [_draft_of(each, options) for each in payloads]
    # A fast path, because most messages are single and have no options.
    if len(payloads) == 1:
        return [_plain_draft_of(payloads[0])]
    return [Draft(payload=each) if type(each) is bytes else _plain_draft_of(each) for each in payloads]


def _plain_draft_of(payload: Any) -> Draft:
    if isinstance(payload, NewMessage):
        return _draft(payload.payload, payload.options)
    body, content_type = encode(payload)
    return Draft(payload=body, content_type=content_type)


def _draft_of(payload: Any, options: Mapping[str, Any]) -> Draft:
    if isinstance(payload, NewMessage):
        return _draft(payload.payload, {**options, **payload.options})
    return _draft(payload, options)


def make_empty_draft(options: Mapping[str, Any]) -> Draft:
    """Return the draft of a message whose payload is uploaded separately, as bytes."""
    return _draft(b"", options)


def _draft(payload: Any, options: Mapping[str, Any]) -> Draft:
    body, content_type = encode(payload)
    if not options:
        return Draft(payload=body, content_type=content_type)
    _check_known(options, EnqueueOptions.__annotations__, "enqueue")
    # The content type that the caller chose does not change whether the payload is JSON or bytes.
    fields: dict[str, Any] = {"content_type": content_type, "is_json": content_type == JSON}
    for name, value in options.items():
        match name:
            case _ if value is None:
                pass
            case "delay" | "ttl":
                fields[f"{name}_ms"] = parse_duration_ms(name, value)
            case "deliver_at":
                fields[name] = parse_instant_ms(name, value)
            case "correlation_id":
                fields[name] = normalise_correlation_id(value)
            case "headers":
                fields[name] = _headers(value)
            case _:
                fields[name] = plain(value)
    return Draft(payload=body, **fields)


def _headers(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidArgument("headers must be a mapping of text to text", field="headers")
    return {plain(name): plain(text) for name, text in value.items()}


def parse_schedule(
    cron: str | None,
    every: Duration | None,
    timezone: str | None,
    payload: Any,
    paused: bool | None,
    options: Mapping[str, Any],
) -> ScheduleChange:
    """Return the change that the arguments of `Queue.schedule` describe. Raise `InvalidArgument`."""
    _check_known(options, ScheduledOptions.__annotations__, "schedule")
    if payload is NOT_GIVEN and options:
        raise InvalidArgument(
            f"{', '.join(options)} needs a payload: the message of a schedule is only replaced as a whole",
            field="payload",
        )
    if paused is not None and not isinstance(paused, bool):
        raise InvalidArgument("paused must be True or False", field="paused")
    return ScheduleChange(
        cron=plain(cron),
        every_ms=None if every is None else parse_duration_ms("every", every),
        timezone=plain(timezone),
        message=None if payload is NOT_GIVEN else _draft(payload, options),
        paused=paused,
    )


def parse_claim_options(limit: int, options: Mapping[str, Any]) -> tuple[ClaimRequest, int | None]:
    """Return the claim request, and the wait in milliseconds; None waits for ever."""
    wait_ms: int | None = 0
    fields: dict[str, Any] = {}
    for name, value in options.items():
        match name:
            case "wait":
                wait_ms = None if value is None else parse_duration_ms("wait", value)
            case "stream":
                fields["streams"] = bool(value)
            case "lease" if value is not None:
                fields["lease_ms"] = parse_duration_ms("lease", value)
            case "owner":
                fields["owner"] = plain(value)
            case "state":
                fields["with_state"] = bool(value)
            case "ledger":
                fields["ledger"] = _ledger(value)
            case _:
                _check_known(options, ClaimOptions.__annotations__, "claim")
    return ClaimRequest(limit=limit, **fields), wait_ms


def parse_on_close_delay(options: Mapping[str, Any]) -> int | None:
    """Return the option `on_close_delay` in milliseconds; None if it was not given."""
    delay = options.get("on_close_delay")
    return None if delay is None else parse_duration_ms("on_close_delay", delay)


def _ledger(value: object) -> tuple[str, int] | None:
    if value is None:
        return None
    if isinstance(value, tuple | list) and len(value) == 2:
        consumer, number = value
        return plain(consumer), number
    raise InvalidArgument("ledger must be (consumer, number)", field="ledger")


def _check_known(options: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    for name in options:
        if name not in known:
            raise InvalidArgument(
                f"{name!r} is not an option of {what}; the options are {', '.join(sorted(known))}", field=name
            )
