"""Every operation over every protocol, for every scope, and on another tenant's objects.

Generated from the rows in access_rows.py: a route, an operation or a method of a session without a row fails here.
"""

import inspect
import itertools
from collections.abc import AsyncIterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from holdfast.doors.http import routes
from holdfast.doors.http.app import HOT_ROUTES
from holdfast.model.errors import Forbidden
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.service.session import Session
from holdfast.testing import ManualClock
from holdfast.wire.operation import Target
from holdfast.wire.operations import OPERATIONS
from tests.doors.access_rows import (
    OF_NO_ROUTE,
    OPEN_PATHS,
    ROWS,
    SCOPES,
    TOKENS,
    Place,
    Row,
    ask,
    everything,
    furnish,
    nowhere,
    sample,
)
from tests.doors.serving import Api, Server, Tokens, caller, serve

every_row = pytest.mark.parametrize("row", ROWS, ids=str)


class World(NamedTuple):
    """Two tenants with the same things, and one who sees all of them."""

    server: Server
    operator: Api
    acme: Place
    other: Place

    def by(self, token: str) -> Api:
        return self.server.with_token(token)


@pytest.fixture
async def world(clock: ManualClock) -> AsyncIterator[World]:
    async with serve(clock, identity=Tokens(TOKENS)) as server:
        operator = server.with_token("operator-admin")
        yield World(server, operator, await furnish(operator, "acme"), await furnish(operator, "other"))


# --- The table is whole ----------------------------------------------------------------------------------------


def served(server: Server) -> set[tuple[str, str]]:
    async def nothing(call: Any) -> None:
        raise AssertionError("asked for")

    hot = {(method, path) for path, (method, _, _) in HOT_ROUTES.items()}
    return hot | {(route.method, route.path) for route in routes.served_routes(nothing)}


async def test_every_way_in_has_a_row_and_every_row_a_way_in(server: Server) -> None:
    assert {(row.method, row.path) for row in ROWS} == served(server)


async def test_what_the_server_describes_is_what_the_rows_call(server: Server) -> None:
    paths = (await server.get("/openapi.json")).json["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described - {("GET", path) for path in OPEN_PATHS} == {(row.method, row.path) for row in ROWS}


def test_every_operation_has_a_row_and_every_row_names_operations() -> None:
    rows = {operation for row in ROWS for operation in row.operations}
    assert rows | OF_NO_ROUTE == set(OPERATIONS)
    assert not rows & OF_NO_ROUTE


def test_every_method_of_a_session_asks_first() -> None:
    methods = {name for name, _ in inspect.getmembers(Session, inspect.isfunction) if not name.startswith("_")}
    hot = {name for name, operation in OPERATIONS.items() if operation.is_hot}
    # What this very session claimed may always be given back. A part of a delivered payload is read as the payload is.
    assert methods - {"give_back", "call", "check_metrics", "read_delivered_part"} == hot - {"metrics"}


def test_rows_and_operations_agree_on_scopes() -> None:
    for row in ROWS:
        assert {str(OPERATIONS[operation].scope) for operation in row.operations} == {row.scope}, row
        assert any(OPERATIONS[operation].is_operators_only for operation in row.operations) == row.is_operators_only, (
            row
        )


# --- Credentials and scopes ------------------------------------------------------------------------------------


async def test_without_a_credential_every_call_is_unauthenticated(world: World) -> None:
    before = await everything(world.operator)
    for row, place in itertools.product(ROWS, (world.acme, nowhere(world.acme))):
        for api in (world.server, world.by("nobody-knows-this")):
            answer = await ask(api, row.request(place))
            assert (answer.status, answer.json["error"]["code"]) == (401, "unauthenticated"), row
            assert answer.headers["WWW-Authenticate"] == "Bearer", row
    assert await everything(world.operator) == before


@pytest.mark.spec("8.6")
@every_row
async def test_a_scope_opens_what_it_says_and_nothing_else(world: World, row: Row) -> None:
    opened = {scope for scope in SCOPES if scope in (row.scope, "admin")}
    allowed = {f"operator-{scope}" for scope in opened}
    if not row.is_operators_only:
        allowed |= {f"acme-{scope}" for scope in opened}
    before = await everything(world.operator)
    for token in TOKENS:
        if token not in allowed and not token.startswith("other"):
            answer = await ask(world.by(token), row.request(world.acme))
            assert (answer.status, answer.json["error"]["code"]) == (403, "forbidden"), token
    assert await everything(world.operator) == before
    for token in sorted(allowed):
        place = await furnish(world.operator, "acme", queue=token)
        if row.path == "/v1/tenants/{tenant}" and row.changes:
            await world.operator.put("/v1/tenants/acme", {"weight": 1})
        before = await everything(world.operator)
        answer = await ask(world.by(token), row.request(place))
        assert answer.status == row.ok, (token, answer)
        assert (await everything(world.operator) != before) == row.changes, token


# --- Another tenant's things -----------------------------------------------------------------------------------


@pytest.mark.spec("8.6")
async def test_another_tenant_is_forbidden_in_the_same_words_whether_it_exists_or_not(world: World) -> None:
    before = await everything(world.operator)
    mallory = world.by("other-admin")
    there, empty = world.acme, nowhere(world.acme)
    for row in ROWS:
        if row.of_no_tenant:
            continue
        answers = []
        for place in (there, there._replace(queue="nowhere"), empty._replace(tenant="acme"), empty):
            answer = await ask(mallory, row.request(place))
            assert (answer.status, answer.json["error"]["code"]) == (403, "forbidden"), row
            body = answer.body.replace(str(place.tenant).encode(), b"T")
            answers.append((body, sorted(answer.headers)))
        assert all(each == answers[0] for each in answers), row
    assert await everything(world.operator) == before


@pytest.mark.parametrize("row", [row for row in ROWS if row.names_things], ids=str)
async def test_another_tenants_ids_and_receipts_are_as_good_as_made_up_ones(world: World, row: Row) -> None:
    """The caller's own queue, with messages."""
    mallory = world.by("other-admin")
    answers = []
    before = await everything(world.operator)
    for place in (world.acme, nowhere(world.acme)):
        mine = place._replace(tenant="other", queue="jobs")
        answer = await ask(mallory, row.request(mine))
        body = answer.body
        for own in (place.ready, place.failed, place.held, str(place.held_number)):
            body = body.replace(own.encode(), b"ID")
        answers.append((answer.status, body))
        if row.claims:
            break
        assert await everything(world.operator) == before
    if row.claims:
        # It may claim what is its own; of the other tenant nothing has changed.
        assert await _of(world, "acme") == await _of_fresh(world)
    else:
        assert answers[0] == answers[1]
        assert answers[0][0] in (404, 409) or b'"matched":0' in answers[0][1]


async def _of(world: World, tenant: str) -> bytes:
    found = await world.operator.get(f"/v1/tenants/{tenant}/queues/jobs/messages", payload=1)
    held = await world.operator.get("/v1/queue/ledger", tenant=tenant, queue="jobs", consumer="nightly")
    assert [each["number"] for each in held.json["claims"]] == [1]
    states = sorted((each["id"], each["state"], each["attempt"], each["version"]) for each in found.json["messages"])
    return repr(states).encode()


async def _of_fresh(world: World) -> bytes:
    """Check that the world is as `furnish` left it."""
    journal = await world.operator.get("/v1/journal", tenant="acme", limit=10_000)
    assert [each["event"] for each in journal.lines] == [
        "enqueued", "claimed", "failed", "enqueued", "claimed", "enqueued", "claimed", *["enqueued"] * 3,
    ]  # fmt: skip
    return await _of(world, "acme")


def names_a_receipt(row: Row) -> bool:
    somewhere = Place("t", "q", "ready", "failed", "held", 1, "the-receipt", "cursor", "consumer", "position")
    return "the-receipt" in str(row.request(somewhere)._asdict())


@pytest.mark.parametrize("row", [row for row in ROWS if names_a_receipt(row)], ids=str)
async def test_a_receipt_of_one_queue_is_stale_in_another_of_the_same_tenant(world: World, row: Row) -> None:
    await furnish(world.operator, "acme", queue="mail")
    before = await everything(world.operator)
    answer = await ask(world.by("acme-admin"), row.request(world.acme._replace(queue="mail")))
    if row.claims:
        assert answer.status == 200
        [result] = answer.json["results"]
        assert (result["ok"], result["error"]) == (False, "queue_message_lease_mismatch")
        held = await world.operator.get(f"/v1/tenants/acme/queues/jobs/messages/{world.acme.held}")
        assert held.json["state"] == "in_flight"
    else:
        assert (answer.status, answer.json["error"]["code"]) == (409, "queue_message_lease_mismatch")
        assert await everything(world.operator) == before


@pytest.mark.spec("1.1")
@pytest.mark.parametrize("row", [row for row in ROWS if row.tenant_optional], ids=str)
async def test_a_tenant_left_out_is_the_callers_own(world: World, row: Row) -> None:
    mallory = world.by("other-admin")
    acme_before, before = await _of(world, "acme"), await everything(world.operator)
    answer = await ask(mallory, row.request(world.other._replace(tenant=None)))
    assert answer.status == row.ok, answer
    assert b"acme" not in answer.body
    assert await _of(world, "acme") == acme_before
    assert (await everything(world.operator) != before) == row.changes
    named = await ask(world.operator, row.request(world.other._replace(tenant=None)))
    # An operator's own is `default`, which has nothing of this.
    assert b"acme" not in named.body or row.path == "/v1/journal"


async def test_a_move_needs_both_its_ends(world: World) -> None:
    before = await everything(world.operator)
    for path, to in (("acme", "other"), ("other", "acme"), ("other", "nobody")):
        document = {"to": {"tenant": to, "queue": "jobs"}}
        answer = await world.by("other-admin").post(f"/v1/tenants/{path}/queues/jobs/move", document)
        assert (answer.status, answer.code) == (403, "forbidden")
    assert await everything(world.operator) == before


async def test_one_foreign_item_refuses_the_whole_call(world: World) -> None:
    before = await everything(world.operator)
    items = [{"payload": "YQ==", "topic": "jobs"}, {"payload": "YQ==", "namespace": "acme", "topic": "jobs"}]
    for order in (items, items[::-1]):
        answer = await world.by("other-admin").post("/enqueue", order)
        assert (answer.status, answer.code) == (403, "forbidden")
    assert await everything(world.operator) == before


async def test_lists_and_journal_show_a_caller_its_own_alone(world: World) -> None:
    mallory = world.by("other-read")
    tenants = (await mallory.get("/v1/tenants")).json["tenants"]
    assert [each["tenant"] for each in tenants] == ["other"]
    # From any position, another's too.
    for position in ({}, {"after": world.acme.position}):
        events = (await mallory.get("/v1/journal", **position)).lines
        assert events
        assert {each["tenant"] for each in events} == {"other"}


# --- The session itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("scope", SCOPES)
async def test_a_session_permits_before_it_looks(operation: str, scope: str) -> None:
    """There are no services behind it: what is permitted finds none, and what is not must not have looked."""
    needs = OPERATIONS[operation]
    has_scope = scope in (needs.scope, "admin")
    for tenant, is_own in (("acme", True), ("*", True), ("other", False)):
        session = Session(caller(tenant, *([] if scope == "none" else [scope])), SimpleNamespace(messages=None))
        is_open = needs.target is Target.SERVER
        is_allowed = has_scope and (is_own or is_open) and (tenant == "*" or not needs.is_operators_only)
        if operation == "metrics":
            with nullcontext() if is_allowed else pytest.raises(Forbidden):
                session.check_metrics()
            continue
        if needs.is_hot:
            method = getattr(session, operation)
            work = method(**{name: _argument(name) for name in inspect.signature(method).parameters})
        else:
            work = session.call(needs, QueueRef("acme", "jobs"), sample(needs, _PLACE))
        with pytest.raises(AttributeError if is_allowed else Forbidden):
            await work


_PLACE = Place("acme", "jobs", "1", "2", "3", 3, str(Receipt(1, bytes(16), 1)), "1", "nightly", "")


def _argument(name: str) -> Any:
    match name:
        case "ref" | "to":
            return QueueRef("acme", "jobs")
        case "tenant":
            return "acme"
        case "batches":
            return {QueueRef("acme", "jobs"): []}
        case "ask":
            return ClaimRequest()
    return None
