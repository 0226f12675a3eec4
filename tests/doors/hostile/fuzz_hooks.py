"""Hooks by which schemathesis makes requests for this server: see test_fuzz.py.

Random names, ids and receipts would meet nothing. So valid ones are replaced by those of a few queues, and by what the
server has answered; and no call is let wait for what will not come.
"""

import json
import random
from typing import Any

import schemathesis

TENANTS = ("acme", "other")
QUEUES = ("jobs", "mail", "default")
WAIT_MS = 1
# A subscriber that has no room waits for a lease to end.
LEASE_MS = 1

_random = random.Random(7)
_seen: dict[str, list[str]] = {"id": [], "receipt": [], "cursor": []}
_leased: list[tuple[int, str]] = []
_NAMES = {"tenant": TENANTS, "namespace": TENANTS, "queue": QUEUES, "topic": QUEUES}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 128 and value.isascii() and value.isalnum()


def _known(field: str, value: object) -> Any:
    """A value that the server knows, for one that is at least of the right form."""
    if field in _NAMES and _is_name(value):
        return _random.choice(_NAMES[field])
    if field in _seen and _seen[field] and isinstance(value, str) and _random.random() < 0.7:
        return _random.choice(_seen[field])
    return value


def _replace(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _known(name, _replace(each)) for name, each in value.items()}
    if isinstance(value, list):
        return [_replace(each) for each in value]
    return value


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    is_valid = case.meta is None or case.meta.generation.mode.is_positive
    for part in (case.path_parameters, case.query):
        for name in list(part or ()) if is_valid else ():
            part[name] = _known(name, part[name])
    if isinstance(case.body, dict | list) and is_valid:
        case.body = _replace(case.body)
        if isinstance(case.body, dict):
            _hold_something(case.path, case.body)
    if isinstance(case.body, dict):
        if case.media_type == "multipart/form-data" and not is_valid and not _is_text(case.body.get("payload", "")):
            # It is sent as bytes, and any bytes are a payload: what is to be refused must be wrong elsewhere.
            case.body.pop("meta", None)
        if "subscribe" in case.path or case.body.get("wait_ms", 0) is None or _is_long(case.body.get("wait_ms")):
            case.body["wait_ms"] = WAIT_MS
        if "subscribe" in case.path and case.body.get("lease_ms", 0) is None:
            case.body["lease_ms"] = LEASE_MS
        if "rate_per_s" in case.body and isinstance(case.body["rate_per_s"], int | float):
            case.body["rate_per_s"] = max(case.body["rate_per_s"], 1_000)
    if isinstance(case.query, dict) and _is_long(case.query.get("wait_ms")):
        case.query["wait_ms"] = WAIT_MS


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes)


def _hold_something(path: str, body: dict[str, Any]) -> None:
    """Receipts and ids that belong together, most of the time."""
    if _random.random() < 0.2:
        return
    if body.get("receipts") and _seen["receipt"]:
        body["receipts"] = _random.sample(_seen["receipt"], min(len(_seen["receipt"]), 3))
    if path in ("/ack", "/nack") and _leased:
        id, receipt = _random.choice(_leased)
        body.update({"id": id, "receipt": receipt} if body.get("receipt") is not None else {"id": id})


def _is_long(value: object) -> bool:
    try:
        return int(value) > WAIT_MS
    except (TypeError, ValueError):
        return False


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    if not response.headers.get("content-type", [""])[0].startswith("application/json"):
        return
    try:
        _collect(json.loads(response.content))
    except ValueError:
        return


def _collect(value: Any) -> None:
    if isinstance(value, dict):
        if "id_str" in value and len(_leased) < 1_000:
            _leased.append((value["id"], value["receipt"]))
        for name, each in value.items():
            if name in _seen and isinstance(each, str) and len(_seen[name]) < 1_000:
                _seen[name].append(each)
            _collect(each)
    elif isinstance(value, list):
        for each in value:
            _collect(each)
