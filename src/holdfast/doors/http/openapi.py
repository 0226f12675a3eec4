"""Build the OpenAPI document from the table of operations and the types that the handlers use."""

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import msgspec

from holdfast.doors.http.operations.bounds import NAME, QUERY, bound
from holdfast.wire.errors import STATUS_BY_CODE, to_wire_code
from holdfast.wire.http import routes as http_routes
from holdfast.wire.http.admin_bodies import HealthAnswer
from holdfast.wire.http.answers import document
from holdfast.wire.http.bodies import (
    ErrorAnswer,
    MetaIn,
    SettleAnswer,
    encode,
)
from holdfast.wire.operation import Operation, Route
from holdfast.wire.operations import OPERATIONS

Schema = dict[str, Any]

# Error statuses of every route that takes a credential; 413 only of routes with a body.
_COMMON_REFUSALS = (400, 401, 403, 413, 429, 431, 500, 503)
_REASONS = {
    400: "The request is invalid; the error names the field",
    401: "The credential is missing or invalid",
    403: "The credential does not permit this operation",
    404: "The queue, message or schedule does not exist",
    409: "A lease is stale, or the queue is being deleted",
    412: "The stored state document has another ETag",
    413: "The body or the payload is too large",
    429: "A rate limit or a quota is exceeded; wait for the time given in Retry-After",
    431: "The headers are too large",
    500: "The server failed; its log gives the cause, under the correlation id of the response",
    503: "The store is unavailable, or the server is shutting down; try again",
}
_SETTLES = frozenset(f"/v1/queue/{verb}" for verb in ("ack", "nack", "extend", "release", "remove"))
_CORRELATION_ID: Schema = {"$ref": "#/components/headers/X-Correlation-Id"}


# Paths that need no credential and are not operations.
_OPEN_ROUTES = (
    Route(
        method="GET", path="/healthz", summary="Return 200 while the server is running", answer=document(HealthAnswer)
    ),
    Route(
        method="GET",
        path="/readyz",
        summary="Return 200 if the server accepts requests, otherwise 503",
        answer=document(HealthAnswer),
    ),
    Route(method="GET", path="/openapi.json", summary="Return this document", answer=document(dict[str, Any])),
)


class _Described(NamedTuple):
    """A route with its summary, and with the types and query parameters derived from the operation's request."""

    route: Route
    summary: str
    body: Any
    query: tuple[str, ...]

    @property
    def answer(self) -> Any:
        return None if self.route.answer is None else self.route.answer.type

    @property
    def types(self) -> list[Any]:
        every = (self.answer, self.body, *(piece for _, piece in self.route.streams))
        return [each for each in every if each is not None]


def _described(operation: Operation[Any, Any], number: int) -> _Described:
    route = operation.routes[number]
    body, query = route.body, route.query
    if not operation.is_hot and route.answer is not None:
        binding = http_routes.bound(operation.name, number)
        body, query = binding.body_type, binding.query_fields
    return _Described(route, route.summary or operation.summary, body, query)


@lru_cache(maxsize=1)
def encode_document() -> bytes:
    """Return the encoded document, built once for all doors of a process."""
    return encode(make_document())


def make_document() -> Schema:
    """Build the OpenAPI 3.1 document of every HTTP route."""
    described = [
        _described(operation, number)
        for operation in OPERATIONS.values()
        for number, route in enumerate(operation.routes)
        if not route.is_view
    ]
    open_routes = [_Described(route, route.summary, None, ()) for route in _OPEN_ROUTES]
    types = {id(kind): kind for kind in (ErrorAnswer, SettleAnswer, MetaIn)}
    types.update((id(kind), kind) for each in (*described, *open_routes) for kind in each.types)
    schemas, components = msgspec.json.schema_components(
        list(types.values()), ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(types, schemas, strict=True))
    for name, component in components.items():
        bound(name, component)
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
    for each in described:
        paths.setdefault(each.route.path, {})[each.route.method.lower()] = _operation(each, schema_of)
    for each in open_routes:
        paths[each.route.path] = {"get": _open_operation(each, schema_of)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": _version(),
            "description": "A message queue with leases. Times are whole milliseconds since 1970 (UTC).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {f"Refused{status}": _refusal(status) for status in _REASONS},
            "headers": {
                "X-Correlation-Id": {
                    "description": "The correlation id of the call, given by the caller or generated by the server; "
                    "for a call on one message, that message's correlation id",
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
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"


# Error responses of routes that settle messages; they may have `results` beside `error`.
_UNSETTLED = {
    409: "Some receipts are stale; `results` names them, and the other verdicts took effect",
    503: "Some verdicts, or all, could not be written; `results`, if present, names those to send again",
}


def _operation(described: _Described, schema_of: dict[int, Schema]) -> Schema:
    route = described.route
    operation: Schema = {
        "operationId": _operation_id(route.method, route.path),
        "summary": described.summary,
        # A server without configured identities takes no credential.
        "security": [{"bearer": []}, {}],
        "parameters": [
            *_path_parameters(route.path),
            *(_query_parameter(name) for name in described.query),
            _CORRELATED,
        ],
        "responses": {str(route.status): _success(described, schema_of)},
    }
    if described.body is not None:
        content: Schema = {"application/json": {"schema": schema_of[id(described.body)]}}
        if route.takes_parts:
            content["multipart/form-data"] = _PARTS
        operation["requestBody"] = {"required": not route.is_body_optional, "content": content}
    for status in sorted({*_COMMON_REFUSALS, *route.refusals}):
        if status != 413 or described.body is not None:
            operation["responses"][str(status)] = {"$ref": f"#/components/responses/Refused{status}"}
    if route.path in _SETTLES:
        for status, description in _UNSETTLED.items():
            operation["responses"][str(status)] = {
                **_refusal(status),
                "description": description,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/UnsettledAnswer"}}},
            }
    return operation


def _open_operation(described: _Described, schema_of: dict[int, Schema]) -> Schema:
    path = described.route.path
    operation: Schema = {
        "operationId": _operation_id("GET", path),
        "summary": described.summary,
        "security": [],
        "responses": {"200": _success(described, schema_of)},
    }
    if path == "/readyz":
        not_ready = "The server does not accept requests; `reason` says why"
        operation["responses"]["503"] = {**_success(described, schema_of), "description": not_ready}
    return operation


def _operation_id(method: str, path: str) -> str:
    words = [word for word in path.replace("{", "").replace("}", "").replace(".", "/").split("/") if word]
    return "_".join([method.lower(), *words])


_CORRELATED: Schema = {
    "name": "X-Correlation-Id",
    "in": "header",
    "required": False,
    "description": "Stored with the messages of the call, and returned in the response",
    "schema": {"type": "string"},
}


def _path_parameters(path: str) -> list[Schema]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": _path_schema(name)} for name in names]


def _path_schema(name: str) -> Schema:
    if name == "id":
        return {"type": "string", "description": "A message id, as a UUID or as a number"}
    return dict(NAME)


def _query_parameter(name: str) -> Schema:
    parameter: Schema = {"name": name, "in": "query", "required": name == "consumer"}
    if name == "filter":
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/FilterIn"}}}
        return {**parameter, "content": content}
    return {**parameter, "schema": dict(QUERY[name])}


def _success(described: _Described, schema_of: dict[int, Schema]) -> Schema:
    content: Schema = {}
    if described.answer is not None:
        content["application/json"] = {"schema": schema_of[id(described.answer)]}
    for media_type, piece in described.route.streams:
        content[media_type] = {"schema": {"type": "string"}}
        if piece is not None:
            # OpenAPI 3.1 cannot describe the items of a stream.
            content[media_type]["x-piece"] = schema_of[id(piece)]
    headers: Schema = {"X-Correlation-Id": _CORRELATION_ID}
    for name in described.route.answer_headers:
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
        "description": "One message: `meta` is its JSON document without a payload, and `payload` its bytes, streamed. "
        "`meta` must precede a payload of more than 1 MiB.",
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
