"""The OpenAPI document, from the tables of routes and the types their handlers use."""

from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from holdfast.doors.http.app import HOT_ROUTES
from holdfast.doors.http.bounds import NAME, QUERY, bound
from holdfast.doors.http.descriptions import DESCRIPTIONS, OPEN_DESCRIPTIONS, Described
from holdfast.doors.http.ways import Way
from holdfast.wire.errors import STATUS_BY_CODE, to_wire_code
from holdfast.wire.http import ErrorAnswer, MetaIn, SettleAnswer, encode

Schema = dict[str, Any]

# What every call with a credential may meet; 413 only where a body is taken.
_COMMON_REFUSALS = (400, 401, 403, 413, 429, 431, 500, 503)
_REASONS = {
    400: "The request is wrong; the error names the field",
    401: "No credential, or none that holds",
    403: "The credential does not allow this",
    404: "There is no such queue, message or schedule",
    409: "A stale lease, or the queue is being deleted",
    412: "The state document has another ETag",
    413: "The body or the payload is too large",
    429: "Too much for now, or over a quota: wait as long as Retry-After says",
    431: "The headers are too large",
    500: "The server failed; its log says why, under the answer's correlation id",
    503: "The store is not to be had, or the server is closing: try again",
}
_SETTLES = frozenset(f"/v1/queue/{verb}" for verb in ("ack", "nack", "extend", "release", "remove"))
_CORRELATION_ID: Schema = {"$ref": "#/components/headers/X-Correlation-Id"}


def encode_document(ways: Iterable[Way]) -> bytes:
    """As it is served: made once, however many doors of a process have the same routes."""
    return _encoded(tuple((way.method, way.path) for way in ways))


def make_document(ways: Iterable[Way]) -> Schema:
    """A route without a description fails here, at start."""
    return _make((way.method, way.path) for way in ways)


@lru_cache(maxsize=8)
def _encoded(routes: tuple[tuple[str, str], ...]) -> bytes:
    return encode(_make(routes))


def _make(more: Iterable[tuple[str, str]]) -> Schema:
    """`more`: beside the hot routes."""
    routes = [*((method, path) for path, (method, _, _) in HOT_ROUTES.items()), *more]
    types: dict[int, Any] = {}
    every = [*DESCRIPTIONS.values(), *OPEN_DESCRIPTIONS.values()]
    for kind in (
        ErrorAnswer,
        SettleAnswer,
        MetaIn,
        *(each for row in every for each in (row.answer, row.body, *(piece for _, piece in row.streams))),
    ):
        if kind is not None:
            types[id(kind)] = kind
    schemas, components = msgspec.json.schema_components(
        list(types.values()), ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(types, schemas, strict=True))
    for name, component in components.items():
        bound(name, component)
    # An error has its own facts beside its code and its message.
    components["ErrorOut"]["properties"]["code"]["enum"] = sorted({to_wire_code(code) for code in STATUS_BY_CODE})
    components["UnsettledAnswer"] = {
        "title": "UnsettledAnswer",
        "type": "object",
        "properties": {
            "error": {"$ref": "#/components/schemas/ErrorOut"},
            "results": {"type": "array", "items": {"$ref": "#/components/schemas/ResultOut"}},
        },
        "required": ["error"],
    }
    paths: Schema = {}
    for method, path in routes:
        operation = _operation(method, path, DESCRIPTIONS[method, path], schema_of)
        paths.setdefault(path, {})[method.lower()] = operation
    for path, described in OPEN_DESCRIPTIONS.items():
        paths[path] = {"get": _open_operation(path, described, schema_of)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": _version(),
            "description": "A message queue with leases. Times are whole milliseconds since 1970.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {f"Refused{status}": _refusal(status) for status in _REASONS},
            "headers": {
                "X-Correlation-Id": {
                    "description": "The call's, as it was given or minted; of one message, the message's",
                    "required": True,
                    "schema": {"type": "string", "minLength": 1, "maxLength": 128},
                }
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }


def _version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:  # run from a copy that was never installed
        return "0"


# Refusals of verdicts that may have results beside the error.
_UNSETTLED = {
    409: "Some receipts were stale; the results say which, and the others hold",
    503: "Some verdicts, or the whole call, could not be written; with results, they say which: send those again",
}


def _operation(method: str, path: str, described: Described, schema_of: dict[int, Schema]) -> Schema:
    operation: Schema = {
        "operationId": _operation_id(method, path),
        "summary": described.summary,
        # Without identities configured there is no credential to give.
        "security": [{"bearer": []}, {}],
        "parameters": [*_path_parameters(path), *(_query_parameter(name) for name in described.query), _CORRELATED],
        "responses": {str(described.status): _success(described, schema_of)},
    }
    if described.body is not None:
        content: Schema = {"application/json": {"schema": schema_of[id(described.body)]}}
        if described.takes_parts:
            content["multipart/form-data"] = _PARTS
        operation["requestBody"] = {"required": not described.is_body_optional, "content": content}
    for status in sorted({*_COMMON_REFUSALS, *described.refusals}):
        if status != 413 or described.body is not None:
            operation["responses"][str(status)] = {"$ref": f"#/components/responses/Refused{status}"}
    if path in _SETTLES:
        for status, description in _UNSETTLED.items():
            operation["responses"][str(status)] = {
                **_refusal(status),
                "description": description,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/UnsettledAnswer"}}},
            }
    return operation


def _open_operation(path: str, described: Described, schema_of: dict[int, Schema]) -> Schema:
    operation: Schema = {
        "operationId": _operation_id("GET", path),
        "summary": described.summary,
        "security": [],
        "responses": {"200": _success(described, schema_of)},
    }
    if path == "/readyz":
        operation["responses"]["503"] = {**_success(described, schema_of), "description": "Not now: `reason` says why"}
    return operation


def _operation_id(method: str, path: str) -> str:
    words = [word for word in path.replace("{", "").replace("}", "").replace(".", "/").split("/") if word]
    return "_".join([method.lower(), *words])


_CORRELATED: Schema = {
    "name": "X-Correlation-Id",
    "in": "header",
    "required": False,
    "description": "Kept with the messages of the call, and answered",
    "schema": {"type": "string"},
}


def _path_parameters(path: str) -> list[Schema]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": _path_schema(name)} for name in names]


def _path_schema(name: str) -> Schema:
    if name == "id":
        return {"type": "string", "description": "A message's id, as a UUID or as a number"}
    return dict(NAME)


def _query_parameter(name: str) -> Schema:
    parameter: Schema = {"name": name, "in": "query", "required": name == "consumer"}
    if name == "filter":
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/FilterIn"}}}
        return {**parameter, "content": content}
    return {**parameter, "schema": dict(QUERY[name])}


def _success(described: Described, schema_of: dict[int, Schema]) -> Schema:
    content: Schema = {}
    if described.answer is not None:
        content["application/json"] = {"schema": schema_of[id(described.answer)]}
    for media_type, piece in described.streams:
        content[media_type] = {"schema": {"type": "string"}}
        if piece is not None:
            # OpenAPI 3.1 has no word for what a stream is made of.
            content[media_type]["x-piece"] = schema_of[id(piece)]
    headers: Schema = {"X-Correlation-Id": _CORRELATION_ID}
    for name in described.answer_headers:
        headers[name] = {"required": True, "schema": {"type": "string"}}
    return {"description": described.summary, "headers": headers, "content": content}


def _refusal(status: int) -> Schema:
    headers: Schema = {"X-Correlation-Id": _CORRELATION_ID}
    if status in (429, 503):
        headers["Retry-After"] = {"description": "Seconds", "required": True, "schema": {"type": "integer"}}
    if status == 401:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"type": "string"}}
    response: Schema = {
        "description": _REASONS[status],
        "headers": headers,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}},
    }
    return response


_PARTS: Schema = {
    "schema": {
        "type": "object",
        "description": "One message: `meta` is its JSON without a payload, `payload` its bytes, streamed; a payload of "
        "more than 1 MiB comes behind its `meta`",
        "properties": {
            "meta": {"$ref": "#/components/schemas/MetaIn"},
            "payload": {"type": "string", "contentMediaType": "application/octet-stream"},
        },
        "required": ["meta", "payload"],
    },
    "encoding": {
        "meta": {"contentType": "application/json"},
        "payload": {"contentType": "application/octet-stream"},
    },
}
