"""Convert the model types that HTTP requests write differently, such as filters and receipts."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import parse_id
from holdfast.model.message import BYTES, JSON, Draft, Receipt, State, check_draft
from holdfast.model.names import QueueRef, parse_name
from holdfast.model.requests import EVERYTHING, Edit, Filter, Progress, check_progress, make_filter, parse_state
from holdfast.wire.binding import FieldShape
from holdfast.wire.http.admin_bodies import (
    EditIn,
    FilterIn,
    ScheduledIn,
    TargetIn,
)
from holdfast.wire.http.bodies import (
    MessageIn,
    ProgressIn,
)
from holdfast.wire.http.drafts import draft_of, message_in
from holdfast.wire.http.shapes import payload_in, payload_of

# The server checks the payload's size, because only the server knows its limit.
_ANY_SIZE = 1 << 62


def filter_in(which: Filter) -> FilterIn | None:
    """Return the document of a filter, or None for the filter that matches every message."""
    if which == EVERYTHING:
        return None
    return FilterIn(
        ids=None if which.ids is None else [str(each) for each in sorted(which.ids)],
        error_contains=which.error_contains,
        older_than_ms=which.older_than_ms,
        headers=which.headers or None,
        priority=which.priority,
        owner=which.owner,
        held_for_ms=which.held_for_ms,
        delayed=which.delayed,
    )


def filter_of(given: FilterIn | None) -> Filter:
    """Return the filter of a document."""
    if given is None:
        return EVERYTHING
    return make_filter({name: value for name, value in asdict(given).items() if value is not None})


def _edit_in(edit: Edit | None) -> EditIn | None:
    if edit is None:
        return None
    payload, payload_base64 = payload_in(edit.payload, edit.content_type == JSON)
    return EditIn(id=str(edit.id), payload=payload, payload_base64=payload_base64)


def _edit_of(given: EditIn | None) -> Edit | None:
    if given is None:
        return None
    payload, is_json = payload_of(given.payload, given.payload_base64, "edit")
    return Edit(id=parse_id(given.id), payload=payload, content_type=JSON if is_json else BYTES)


def _scheduled_in(draft: Draft | None) -> ScheduledIn | None:
    if draft is None:
        return None
    check_draft(draft, _ANY_SIZE)
    given = asdict(message_in(draft))
    for field in ("delay_ms", "deliver_at", "idempotency_key"):
        if given.pop(field) is not None:
            raise InvalidArgument(f"the message of a schedule cannot have {field}; remove it", field=f"message.{field}")
    return ScheduledIn(**given)


def _scheduled_of(given: ScheduledIn | None) -> Draft | None:
    """Return the message of a schedule.

    It does not inherit this call's correlation id: each tick of the schedule is a call of its own.
    """
    return None if given is None else draft_of(MessageIn(**asdict(given)), "message", None)


def _target_of(given: TargetIn, ref: QueueRef) -> QueueRef:
    tenant = ref.tenant if given.tenant is None else parse_name("tenant", given.tenant)
    return QueueRef(tenant, parse_name("queue", given.queue))


def _progress_in(progress: Progress | None) -> ProgressIn | None:
    return None if progress is None else ProgressIn(percent=progress.percent, text=progress.text)


def _progress_of(given: ProgressIn | None) -> Progress | None:
    return None if given is None else check_progress(given.percent, given.text)


HTTP_FIELDS: Mapping[Any, FieldShape] = {
    Filter: FieldShape(FilterIn | None, filter_in, lambda given, ref: filter_of(given)),
    Edit | None: FieldShape(EditIn | None, _edit_in, lambda given, ref: _edit_of(given)),
    Draft | None: FieldShape(ScheduledIn | None, _scheduled_in, lambda given, ref: _scheduled_of(given)),
    QueueRef: FieldShape(TargetIn, lambda ref: TargetIn(queue=ref.queue, tenant=ref.tenant), _target_of),
    Progress | None: FieldShape(ProgressIn | None, _progress_in, lambda given, ref: _progress_of(given)),
    Receipt: FieldShape(str, str, lambda given, ref: Receipt.parse(given)),
    State: FieldShape(str, str, lambda given, ref: parse_state(given)),
}
