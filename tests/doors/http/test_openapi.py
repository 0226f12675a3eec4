"""The OpenAPI document is true: it has every route, and nothing else."""

from typing import Any

import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from holdfast.doors.http.app import HOT_ROUTES
from holdfast.doors.http.openapi import make_document
from holdfast.doors.http.operations.bounds import DESCRIBED_TYPES
from holdfast.doors.http.routes import served_routes
from holdfast.wire.errors import STATUS_BY_CODE
from tests.doors.access_rows import OPEN_PATHS
from tests.doors.serving import Server


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return dict(msgspec.json.decode(msgspec.json.encode(make_document())))


def routes() -> set[tuple[str, str]]:
    async def unused(call: object) -> None:
        """A handler is not asked when a document is made."""

    hot = {(method, path) for path, (method, _, _) in HOT_ROUTES.items()}
    return hot | {(route.method, route.path) for route in served_routes(unused)}


@pytest.mark.spec("8.1")
def test_every_route_is_described_and_nothing_else_is(document: dict[str, Any]) -> None:
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == routes() | {("GET", path) for path in OPEN_PATHS}


def test_every_type_with_bounds_of_its_own_is_in_the_document(document: dict[str, Any]) -> None:
    assert document["components"]["schemas"].keys() >= DESCRIBED_TYPES


@pytest.mark.spec("8.1")
def test_the_document_is_openapi_3_1(document: dict[str, Any]) -> None:
    validate(document, cls=OpenAPIV31SpecValidator)


async def test_the_document_is_served_to_anybody(guarded: Server, document: dict[str, Any]) -> None:
    answer = await guarded.get("/openapi.json")
    assert answer.status == 200
    assert answer.json == document


@pytest.mark.spec("8.1")
async def test_every_described_route_is_served(server: Server, document: dict[str, Any]) -> None:
    """Whatever it answers to a call without anything, it is not that nothing is there."""
    for path, methods in document["paths"].items():
        for method in methods:
            filled = (
                path.replace("{tenant}", "acme").replace("{queue}", "jobs").replace("{id}", "7").replace("{name}", "x")
            )
            if path == "/v1/queue/watch":
                filled += "?tenant=.."
            answer = await server.call(method.upper(), filled)
            assert answer.status != 405, (method, path)
            assert answer.status != 404 or answer.code.endswith("_not_found"), (method, path)


def test_every_operation_tells_its_errors_and_its_correlation_id(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path in OPEN_PATHS:
                continue
            assert {"400", "401", "403", "429", "500", "503"} <= set(operation["responses"]), (method, path)
            for response in operation["responses"].values():
                name = response.get("$ref", "").rpartition("/")[2]
                headers = (document["components"]["responses"][name] if name else response)["headers"]
                assert "X-Correlation-Id" in headers, (method, path)
            assert operation["security"] == [{"bearer": []}, {}]


def test_every_status_an_error_may_have_is_described(document: dict[str, Any]) -> None:
    described = {int(name.removeprefix("Refused")) for name in document["components"]["responses"]}
    assert set(STATUS_BY_CODE.values()) <= described


def test_names_of_operations_are_unique(document: dict[str, Any]) -> None:
    ids = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(ids) == len(set(ids))


def test_payloads_are_any_json_and_parts_are_bytes(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["MessageIn"]["properties"]["payload"] == {}
    enqueue = document["paths"]["/v1/queue/enqueue"]["post"]["requestBody"]["content"]
    assert set(enqueue) == {"application/json", "multipart/form-data"}
    assert enqueue["multipart/form-data"]["schema"]["required"] == ["meta", "payload"]
    answers = document["paths"]["/v1/queue/dequeue"]["post"]["responses"]["200"]["content"]
    assert set(answers) == {"application/json", "multipart/mixed"}
