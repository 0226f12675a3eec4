"""What the types alone do not say: the ranges and forms that the model checks, by the name of the field."""

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
    "cursor": {"type": "string", "description": "The `cursor` of the page before"},
    "limit": _LIMIT,
    "payload": _FLAG,
    "force_after_ms": {**_whole(0, MAX_MS), "default": 30_000},
    "after": {"type": "string", "description": "`X-Journal-Next` of the answer before; left out: the oldest kept"},
    "until": {"type": "string", "description": "`X-Journal-Next` of an earlier answer: nothing behind it"},
    "count": {**_FLAG, "description": "Only how many and where they end, in the headers"},
    "wait_ms": {**_whole(0, MAX_MS), "default": 0},
    "consumer": _LABEL,
    "number": _whole(0, MAX_MS),
}

# By the name of the field, in every document. The numbers that come in say it in their types.
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
# Where a name means another thing, or has a narrower range.
_OWN_FIELDS: dict[str, dict[str, Schema]] = {
    "PurgeRequest": {"state": {"enum": ["ready", "failed"]}},
    "MoveRequest": {"state": {"enum": ["ready", "failed"]}},
    "ScheduleRequest": {
        "cron": {
            "maxLength": MAX_LINE,
            "description": "Five fields: minute, hour, day of month, month, day of week",
            "pattern": r"^\s*\S+(?:\s+\S+){4}\s*$",
        },
        "timezone": {"maxLength": MAX_ZONE, "description": "A name like Europe/Berlin; UTC unless given"},
    },
    "ProgressIn": {"text": {"maxLength": 1_024}},
    "Item": {"payload": {"contentEncoding": "base64", "pattern": _BASE64}, "deliver_after": {"format": "date-time"}},
    "LeasedItem": {"payload": {"contentEncoding": "base64"}, "lease_expires_at": {"format": "date-time"}},
    "AckIn": {"id": {"description": "As a number or as text", "maximum": MAX_ID}},
    "NackIn": {"id": {"description": "As a number or as text", "maximum": MAX_ID}},
}
_CONFIGS = frozenset({"QueuePolicy", "Quotas", "Limits", "TenantConfig"})
# Exactly one of the two.
_ONE_PAYLOAD = frozenset({"MessageIn", "EditIn", "ScheduledIn"})


def bound(name: str, component: Schema) -> None:
    """Say of a type's fields what the model will check."""
    for field, schema in component.get("properties", {}).items():
        rules = _OWN_FIELDS.get(name, {}).get(field, _FIELDS.get(field))
        if rules is None and name in _CONFIGS:
            rules = {"minimum": 0, "maximum": MAX_MS}
        if rules:
            _apply(schema, rules)
    if name in _ONE_PAYLOAD:
        component["oneOf"] = [{"required": ["payload"]}, {"required": ["payload_base64"]}]


def _apply(schema: Schema, rules: Schema) -> None:
    """To the branch that has a value; a null stays allowed where it was."""
    for branch in schema.get("anyOf", [schema]):
        kind = branch.get("type")
        if kind in ("integer", "number"):
            branch.update({key: value for key, value in rules.items() if key in _OF_NUMBERS})
        elif kind == "string":
            branch.update({key: value for key, value in rules.items() if key not in _OF_NUMBERS})


_OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum"})
