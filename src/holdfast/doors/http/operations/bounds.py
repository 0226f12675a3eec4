"""Bounds and formats that the model checks and the types do not express, by field name, for the OpenAPI document."""

from typing import Any

from holdfast.model.ids import MAX_ID
from holdfast.model.message import MAX_BATCH, State
from holdfast.model.parsing.checks import MAX_TEXT
from holdfast.model.parsing.cron import MAX_LINE, MAX_ZONE
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import DELAYED

Schema = dict[str, Any]

NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"}
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def _whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


_LIMIT = _whole(1, MAX_BATCH)
_FLAG: Schema = {"type": "string", "enum": ["0", "1", "false", "true"], "default": "0"}
_STATE: Schema = {"type": "string", "enum": [str(state) for state in State]}
_LABEL: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}

QUERY: dict[str, Schema] = {
    "tenant": NAME,
    "queue": NAME,
    "namespace": NAME,
    "topic": NAME,
    "state": {"type": "string", "enum": [*_STATE["enum"], DELAYED]},
    "cursor": {"type": "string", "description": "The `cursor` of the previous page"},
    "limit": _LIMIT,
    "payload": _FLAG,
    "force_after_ms": {**_whole(0, MAX_MS), "default": 30_000},
    "after": {
        "type": "string",
        "description": "The `X-Journal-Next` of the previous response; by default the oldest event that is kept",
    },
    "until": {
        "type": "string",
        "description": "The `X-Journal-Next` of an earlier response; later events are not returned",
    },
    "count": {**_FLAG, "description": "Return no events, only their number and the next position in the headers"},
    "wait_ms": {**_whole(0, MAX_MS), "default": 0},
    "consumer": _LABEL,
    "number": _whole(0, MAX_MS),
}

# Rules by field name, for all documents. The numbers in requests have their bounds in their types.
_FIELDS: dict[str, Schema] = {
    "tenant": {"pattern": NAME["pattern"]},
    "queue": {"pattern": NAME["pattern"]},
    "namespace": {"pattern": NAME["pattern"]},
    "topic": {"pattern": NAME["pattern"]},
    "lease_ms": {"minimum": 1, "maximum": MAX_MS},
    "max_lease_ms": {"minimum": 1, "maximum": MAX_MS},
    "ttl_ms": {"minimum": 1, "maximum": MAX_MS},
    "default_ttl_ms": {"minimum": 1, "maximum": MAX_MS},
    "weight": {"minimum": 1, "maximum": MAX_MS},
    "journal_retention_ms": {"minimum": 1, "maximum": MAX_MS},
    "idempotency_key": {"minLength": 1, "maxLength": MAX_TEXT},
    "group": {"minLength": 1, "maxLength": MAX_TEXT},
    "owner": {"minLength": 1, "maxLength": MAX_TEXT},
    "consumer": {"minLength": 1, "maxLength": MAX_TEXT},
    "payload_base64": {"contentEncoding": "base64", "pattern": _BASE64},
    "receipt": {"pattern": "^[A-Za-z0-9_-]{54}$"},
    "verdict": {"enum": ["ack", "nack", "release"]},
    "state": {"enum": _STATE["enum"]},
}
# Rules of one document, where a field name has another meaning or a narrower range.
_OWN_FIELDS: dict[str, dict[str, Schema]] = {
    "PurgeRequest": {"state": {"enum": ["ready", "failed"]}},
    "MoveRequest": {"state": {"enum": ["ready", "failed"]}},
    "ScheduleRequest": {
        "cron": {
            "maxLength": MAX_LINE,
            "description": "A cron expression of five fields: minute, hour, day of month, month, day of week",
            "pattern": r"^\s*\S+(?:\s+\S+){4}\s*$",
        },
        "timezone": {"maxLength": MAX_ZONE, "description": "A time zone such as Europe/Berlin; UTC by default"},
    },
    "ProgressIn": {"text": {"maxLength": 1_024}},
    "CompatibleItem": {
        "payload": {"contentEncoding": "base64", "pattern": _BASE64},
        "deliver_after": {"format": "date-time"},
    },
    "LeasedItem": {"payload": {"contentEncoding": "base64"}, "lease_expires_at": {"format": "date-time"}},
    "AckIn": {"id": {"description": "The message id, as a number or as text", "maximum": MAX_ID}},
    "NackIn": {"id": {"description": "The message id, as a number or as text", "maximum": MAX_ID}},
}
_CONFIGS = frozenset({"QueuePolicy", "Quotas", "Limits", "TenantConfig"})
# Documents that have exactly one of `payload` and `payload_base64`.
_ONE_PAYLOAD = frozenset({"MessageIn", "EditIn", "ScheduledIn"})


def bound(name: str, component: Schema) -> None:
    """Add the model's checks to the schema of a document type."""
    for field, schema in component.get("properties", {}).items():
        rules = _OWN_FIELDS.get(name, {}).get(field, _FIELDS.get(field))
        if rules is None and name in _CONFIGS:
            rules = {"minimum": 0, "maximum": MAX_MS}
        if rules:
            _apply(schema, rules)
    if name in _ONE_PAYLOAD:
        component["oneOf"] = [{"required": ["payload"]}, {"required": ["payload_base64"]}]


def _apply(schema: Schema, rules: Schema) -> None:
    """Add rules to the branch of a schema that has a value, so that null stays allowed."""
    for branch in schema.get("anyOf", [schema]):
        kind = branch.get("type")
        if kind in ("integer", "number"):
            branch.update({key: value for key, value in rules.items() if key in _OF_NUMBERS})
        elif kind == "string":
            branch.update({key: value for key, value in rules.items() if key not in _OF_NUMBERS})


_OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum"})

# The types that the rules above name.
DESCRIBED_TYPES = frozenset({*_OWN_FIELDS, *_CONFIGS, *_ONE_PAYLOAD})
