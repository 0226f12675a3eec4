"""Handlers that `@worker.handler` accepts, and those that it refuses at import."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

import holdfast
from holdfast.testing import HandlerTest
from holdfast.worker.handlers import Pool


class Order(msgspec.Struct):
    amount: int


class Model(pydantic.BaseModel):
    amount: int


@dataclass
class Data:
    amount: int


@pytest.fixture
def worker() -> holdfast.Worker:
    return holdfast.Worker("memory://")


async def taken(handler: Callable[..., Any], payload: Any, **options: Any) -> list[Any]:
    """Return the arguments that the handler received."""
    worker = holdfast.Worker("memory://")
    worker.handler("q")(handler)
    seen.clear()
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", payload, **options)
        await t.run()
        t.assert_acked(id)
    return list(seen)


seen: list[Any] = []


async def takes_nothing() -> None:
    seen.append("called")


async def takes_anything(body) -> None:
    seen.append(body)


async def takes_struct(order: Order) -> None:
    seen.append(order)


async def takes_structs(orders: list[Order]) -> None:
    seen.append(orders)


async def takes_models(orders: list[Model]) -> None:
    seen.append(orders)


async def takes_model(order: Model) -> None:
    seen.append(order)


async def takes_data(order: Data) -> None:
    seen.append(order)


async def takes_bytes(raw: bytes) -> None:
    seen.append(raw)


async def takes_text(text: str) -> None:
    seen.append(text)


async def takes_bounded(number: Annotated[int, msgspec.Meta(ge=0)]) -> None:
    seen.append(number)


async def takes_either(order: Order | None) -> None:
    seen.append(order)


@pytest.mark.spec("10.2")
@pytest.mark.parametrize(
    ("handler", "payload", "given"),
    [
        (takes_nothing, {"a": 1}, "called"),
        (takes_anything, {"a": 1}, {"a": 1}),
        (takes_anything, b"\x00\xff", b"\x00\xff"),
        (takes_struct, {"amount": 7}, Order(7)),
        (takes_structs, [[{"amount": 7}]], [Order(7)]),
        (takes_models, [[{"amount": 7}]], [Model(amount=7)]),
        (takes_model, {"amount": 7}, Model(amount=7)),
        (takes_data, {"amount": 7}, Data(7)),
        (takes_bytes, {"amount": 7}, b'{"amount":7}'),
        (takes_bytes, b"\x00\xff", b"\x00\xff"),
        (takes_text, "words", "words"),
        (takes_text, b"words", "words"),
        (takes_bounded, 3, 3),
        (takes_either, None, None),
    ],
)
async def test_the_payload_comes_as_the_annotation_asks(handler: Callable[..., Any], payload: Any, given: Any) -> None:
    assert await taken(handler, payload) == [given]


async def test_json_under_a_content_type_of_its_own_is_still_json() -> None:
    assert await taken(takes_anything, {"a": 1}, content_type="application/vnd.shop.order") == [{"a": 1}]


async def message_alone(message: holdfast.Message) -> None:
    seen.append(message.payload)


async def message_by_name(order: Order, message) -> None:
    seen.extend([order, message.attempt])


async def message_first(m: holdfast.Message, order: Order, extra: int = 5) -> None:
    seen.extend([order, m.attempt, extra])


async def message_positional(order: Order, m: holdfast.Message, /) -> None:
    seen.extend([order, m.attempt])


async def message_last(order: Order, extra: int = 5, *, m: holdfast.Message) -> None:
    seen.extend([order, m.attempt, extra])


@pytest.mark.parametrize(
    ("handler", "given"),
    [
        (message_alone, [b'{"amount":7}']),
        (message_by_name, [Order(7), 1]),
        (message_first, [Order(7), 1, 5]),
        (message_positional, [Order(7), 1]),
        (message_last, [Order(7), 1, 5]),
    ],
)
async def test_the_message_comes_to_the_parameter_annotated_or_named_so(
    handler: Callable[..., Any], given: list[Any]
) -> None:
    assert await taken(handler, {"amount": 7}) == given


async def test_a_parameter_called_message_with_a_type_of_payloads_takes_the_payload() -> None:
    async def handler(message: dict) -> None:
        seen.append(message)

    assert await taken(handler, {"a": 1}) == [{"a": 1}]


def test_the_decorator_leaves_the_function_as_it_was(worker: holdfast.Worker) -> None:
    assert worker.handler("q")(takes_struct) is takes_struct


@pytest.mark.spec("10.3")
def test_async_functions_run_on_the_loop_and_others_in_threads(worker: holdfast.Worker) -> None:
    worker.handler("a")(takes_struct)
    worker.handler("b")(plain)
    worker.handler("c", pool="process")(plain)
    worker.handler("d", process=True)(plain)
    assert [each.options.pool for each in worker.handlers.values()] == [
        Pool.LOOP,
        Pool.THREAD,
        Pool.PROCESS,
        Pool.PROCESS,
    ]


def plain(order: Order) -> None: ...


async def two_payloads(order: Order, db) -> None: ...


async def keyword_only(order: Order, *, db: int) -> None: ...


async def of_no_type(order: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821


async def of_a_plain_class(order: holdfast.Worker) -> None: ...


async def generator(order: Order):
    yield order


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (two_payloads, "parameter 'db' that the worker cannot fill"),
        (keyword_only, "parameter 'db' that the worker cannot fill"),
        (of_no_type, "annotations cannot be evaluated"),
        (of_a_plain_class, "cannot be decoded into Worker"),
        (generator, "is a generator"),
        (Order, "a handler must be a function"),
        ("charge", "a handler must be a function"),
    ],
)
def test_a_function_the_worker_cannot_call_is_refused(worker: holdfast.Worker, function: Any, says: str) -> None:
    with pytest.raises(holdfast.InvalidArgument, match=says):
        worker.handler("q")(function)
    assert not worker.handlers


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": "many"}, "concurrency"),
        ({"lease": "soon"}, "lease"),
        ({"lease": 0}, "lease"),
        ({"timeout": -1}, "timeout"),
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"backoff": "often"}, "backoff"),
        ({"pool": "fork"}, "pool"),
        ({"pool": "process"}, "pool"),
        ({"process": "yes"}, "process"),
        ({"state": 1}, "state"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(worker: holdfast.Worker, options: dict[str, Any], field: str) -> None:
    with pytest.raises(holdfast.InvalidArgument) as refused:
        worker.handler("q", **options)(takes_struct)
    assert refused.value.facts["field"] == field


def test_an_option_that_does_not_exist_is_refused(worker: holdfast.Worker) -> None:
    with pytest.raises(TypeError, match="retires"):
        worker.handler("q", retires=5)


def test_a_bad_name_is_refused(worker: holdfast.Worker) -> None:
    with pytest.raises(holdfast.InvalidName):
        worker.handler("no spaces")(takes_struct)
    with pytest.raises(holdfast.InvalidName):
        worker.handler("q", tenant=".hidden")(takes_struct)


def test_a_decorator_without_its_parentheses_is_refused(worker: holdfast.Worker) -> None:
    with pytest.raises(holdfast.InvalidArgument, match="the queue is missing"):
        worker.handler(takes_struct)


def test_one_queue_has_one_handler(worker: holdfast.Worker) -> None:
    worker.handler("q")(takes_struct)
    worker.handler("q", tenant="other")(takes_data)
    with pytest.raises(holdfast.InvalidArgument, match="default/q already has the handler takes_struct"):
        worker.handler("q")(takes_model)


def test_a_function_that_no_process_could_import_is_refused(worker: holdfast.Worker) -> None:
    def inner(order: Order) -> None: ...

    with pytest.raises(holdfast.InvalidArgument, match="at the top level of a module"):
        worker.handler("q", process=True)(inner)


def test_a_worker_without_handlers_does_not_run(worker: holdfast.Worker) -> None:
    with pytest.raises(holdfast.InvalidArgument, match="no handlers"):
        worker.run()


def test_settings_beside_something_open_are_refused() -> None:
    with holdfast.open("memory://") as hf, pytest.raises(holdfast.InvalidArgument, match="durability"):
        holdfast.Worker(hf, durability="os")


@pytest.mark.spec("10.3")
def test_an_owner_is_made_that_no_other_start_shares() -> None:
    first, second = holdfast.Worker("memory://"), holdfast.Worker("memory://")
    assert first.owner != second.owner
    assert holdfast.Worker("memory://", owner="billing-1").owner == "billing-1"
