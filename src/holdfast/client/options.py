"""The keywords of enqueue and claim, to what the service takes."""

from collections.abc import Mapping
from typing import Any, TypedDict

from holdfast.client.payloads import encode
from holdfast.model.checks import plain
from holdfast.model.durations import Duration, Instant, parse_duration_ms, parse_instant_ms
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import JSON, Draft, NewMessage, normalise_correlation_id
from holdfast.model.requests import Ask
from holdfast.model.schedules import Change


class EnqueueOptions(TypedDict, total=False):
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
    """Those of enqueue that a message of a schedule may have."""

    priority: int
    ttl: Duration
    group: str
    headers: Mapping[str, str]
    correlation_id: str
    max_retries: int
    content_type: str


# A payload that was left out: None is a payload.
NOT_GIVEN: Any = object()


class ClaimOptions(TypedDict, total=False):
    wait: Duration | None
    lease: Duration
    owner: str
    state: bool
    on_close_delay: Duration
    stream: bool | None
    ledger: tuple[str, int]


def drafts_of(payload: Any, options: Mapping[str, Any]) -> list[Draft]:
    """One draft per payload. The options hold for each of them; a NewMessage's own come first."""
    payloads = payload if isinstance(payload, list) else [payload]
    if "key" in options and options["key"] is not None and isinstance(payload, list) and len(payload) != 1:
        raise InvalidArgument(
            "one key for several payloads would drop all but the first: give each a NewMessage(payload, key=...)",
            field="key",
        )
    if not options:
        # Most payloads are bytes and nothing else.
        return [Draft(payload=each) if type(each) is bytes else _draft_of(each, options) for each in payloads]
    return [_draft_of(each, options) for each in payloads]


def _draft_of(payload: Any, options: Mapping[str, Any]) -> Draft:
    if isinstance(payload, NewMessage):
        return _draft(payload.payload, {**options, **payload.options})
    return _draft(payload, options)


def draft_of_bytes(options: Mapping[str, Any]) -> Draft:
    """Of bytes that are yet to come."""
    return _draft(b"", options)


def _draft(payload: Any, options: Mapping[str, Any]) -> Draft:
    body, content_type = encode(payload)
    if not options:
        return Draft(payload=body, content_type=content_type)
    _check_known(options, EnqueueOptions.__annotations__, "enqueue")
    # What was given as JSON stays JSON under a content type of the caller's own, and bytes stay bytes.
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


def change_of(
    cron: str | None,
    every: Duration | None,
    timezone: str | None,
    payload: Any,
    paused: bool | None,
    options: Mapping[str, Any],
) -> Change:
    _check_known(options, ScheduledOptions.__annotations__, "schedule")
    if payload is NOT_GIVEN and options:
        raise InvalidArgument(
            f"{', '.join(options)} come with a payload: a schedule's message is changed as a whole", field="payload"
        )
    if paused is not None and not isinstance(paused, bool):
        raise InvalidArgument("paused is True or False", field="paused")
    return Change(
        cron=plain(cron),
        every_ms=None if every is None else parse_duration_ms("every", every),
        timezone=plain(timezone),
        message=None if payload is NOT_GIVEN else _draft(payload, options),
        paused=paused,
    )


def ask_of(limit: int, options: Mapping[str, Any]) -> tuple[Ask, int | None]:
    """The claim, and how long it waits in milliseconds (None: for ever)."""
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
    return Ask(limit=limit, **fields), wait_ms


def on_close_delay_of(options: Mapping[str, Any]) -> int | None:
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
