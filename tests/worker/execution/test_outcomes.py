"""The outcome of a message, by the end of its handler."""

import asyncio
import sys
from typing import Any

import msgspec
import pydantic
import pytest

import holdfast
from holdfast.model.message import State
from holdfast.testing import HandlerTest


class Order(msgspec.Struct):
    amount: int


class Model(pydantic.BaseModel):
    amount: int
    note: str


@pytest.fixture
def worker() -> holdfast.Worker:
    return holdfast.Worker("memory://")


async def test_a_handler_that_returns_acks(worker: holdfast.Worker) -> None:
    @worker.handler("q")
    async def handle(order: Order) -> None: ...

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", {"amount": 7})
        assert await t.run() == 1
        t.assert_acked(id)
        assert t.stats("q").in_flight == 0


@pytest.mark.spec("2.5")
async def test_the_handler_reads_the_message_with_its_fencing_version(worker: holdfast.Worker) -> None:
    seen: list[Any] = []

    @worker.handler("q", state=True)
    async def handle(order: Order, message: holdfast.Message) -> None:
        await message.progress(40, "resized")
        await message.save_state({"step": message.attempt})
        seen.append((message.id, message.attempt, message.version, message.headers, message.correlation_id))
        if message.attempt == 1:
            raise ValueError("no")
        assert message.state == {"step": 2}

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", {"amount": 7}, headers={"a": "b"}, correlation_id="trace-me")
        await t.run()
        await t.advance("1m")
        await t.run()
        t.assert_acked(id)
    assert [each[1:] for each in seen] == [(1, 1, {"a": "b"}, "trace-me"), (2, 2, {"a": "b"}, "trace-me")]
    assert seen[0][0] == id


async def test_an_exception_nacks_with_its_type_and_message(worker: holdfast.Worker) -> None:
    @worker.handler("q")
    async def handle(order: Order) -> None:
        raise ValueError("the card is blocked")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", {"amount": 7})
        await t.start()
        t.assert_retried(id, "ValueError: the card is blocked")
        info = t.get("q", id)
        assert (info.state, info.failures, info.last_error) == (State.READY, 1, "ValueError: the card is blocked")


async def test_an_endless_error_text_is_cut_and_made_storable(
    worker: holdfast.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "holdfast.worker")  # the text as it was raised is too much for a test's report

    @worker.handler("q", retries=0)
    async def handle() -> None:
        raise ValueError("\ud800" + "x" * 100_000)

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.run()
        t.assert_failed(id, "ValueError: \\ud800x")
        assert len(t.get("q", id).last_error or "") == 4_096


@pytest.mark.parametrize("stop", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_not_even_an_exit_takes_the_worker_along(worker: holdfast.Worker, stop: BaseException) -> None:
    @worker.handler("q", retries=0)
    async def handle() -> None:
        raise stop

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.run()
        t.assert_failed(id, type(stop).__name__)


async def test_a_plain_function_that_exits_takes_nothing_along(worker: holdfast.Worker) -> None:
    @worker.handler("q", retries=0)
    def handle() -> None:
        sys.exit(3)

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.run()
        t.assert_failed(id, "SystemExit: 3")


# --- Bad payloads ----------------------------------------------------------------------------------------------


async def test_a_bad_payload_goes_to_the_dead_letters_before_the_handler_runs(worker: holdfast.Worker) -> None:
    called: list[Order] = []
    begun: list[holdfast.Message] = []
    worker.before(begun.append)

    @worker.handler("q", retries=5)
    async def handle(order: Order) -> None:
        called.append(order)

    async with HandlerTest(worker) as t:
        ids = await t.enqueue("q", [{"amount": "seven"}, {}, b"not json"])
        await t.run()
        t.assert_failed(ids[0], "$.amount")
        t.assert_failed(ids[1], "missing required field `amount`")
        t.assert_failed(ids[2], "the payload is not Order")
        info = t.get("q", ids[0])
        assert (info.state, info.reason, info.attempt) == (State.FAILED, "final", 1)
    assert not called
    assert not begun


async def test_a_bad_payload_for_pydantic_names_its_fields_and_quotes_nothing(worker: holdfast.Worker) -> None:
    @worker.handler("q")
    async def handle(order: Model) -> None: ...

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", {"amount": "a secret"})
        await t.run()
        [outcome] = t.outcomes(id)
        assert outcome.error is not None
        assert "amount: Input should be a valid integer" in outcome.error
        assert "note: Field required" in outcome.error
        assert "secret" not in outcome.error


# --- Saying more -----------------------------------------------------------------------------------------------


async def test_retry_comes_back_after_its_delay_and_counts(worker: holdfast.Worker) -> None:
    @worker.handler("q")
    async def handle(message: holdfast.Message) -> None:
        if message.attempt == 1:
            raise holdfast.Retry("the bank is closed", delay="1h")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.run()
        t.assert_retried(id, "the bank is closed")
        assert t.get("q", id).failures == 1
        await t.advance(3_599)
        assert await t.run() == 0
        await t.advance(1)
        assert await t.run() == 1
        t.assert_acked(id)


async def test_reject_goes_to_the_dead_letters_with_its_reason(worker: holdfast.Worker) -> None:
    @worker.handler("q")
    async def handle() -> None:
        raise holdfast.Reject("no such customer")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.run()
        t.assert_failed(id, "no such customer")
        assert t.get("q", id).attempt == 1


async def test_defer_comes_back_later_and_counts_as_no_failure(worker: holdfast.Worker) -> None:
    @worker.handler("q", retries=0)
    async def handle(message: holdfast.Message) -> None:
        if message.attempt <= 5:
            raise holdfast.Defer("1m")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        for _ in range(5):
            await t.run()
            t.assert_deferred(id)
            assert t.get("q", id).failures == 0
            await t.advance("1m")
        await t.run()
        t.assert_acked(id)


async def test_a_handlers_own_verdict_stands(worker: holdfast.Worker) -> None:
    @worker.handler("q")
    async def handle(message: holdfast.Message) -> None:
        await message.nack("by hand", final=True)

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.run()
        assert [each.kind for each in t.outcomes(id)] == ["settled"]
        assert t.get("q", id).last_error == "by hand"


# --- Retries ---------------------------------------------------------------------------------------------------


async def attempts_until_failed(t: HandlerTest, id: str) -> int:
    for _ in range(100):
        await t.run()
        if t.outcomes(id)[-1].kind == "failed":
            return len(t.outcomes(id))
        await t.advance("1h")
    raise AssertionError("it never failed")


@pytest.mark.spec("10.3")
@pytest.mark.parametrize("retries", [0, 1, 3, 5, 12])
async def test_a_message_is_tried_once_and_retried_as_often_as_its_handler_says(
    worker: holdfast.Worker, retries: int
) -> None:
    @worker.handler("q", retries=retries)
    async def handle() -> None:
        raise ValueError("no")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        assert await attempts_until_failed(t, id) == retries + 1
        assert t.get("q", id).state is State.FAILED


async def test_without_a_number_the_queues_own_stands(worker: holdfast.Worker) -> None:
    @worker.handler("q")
    async def handle() -> None:
        raise ValueError("no")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        assert await attempts_until_failed(t, id) == 4
        [once] = await t.enqueue("q", 1, max_retries=0)
        assert await attempts_until_failed(t, once) == 1


async def test_releases_and_defers_use_up_no_retries(worker: holdfast.Worker) -> None:
    @worker.handler("q", retries=2)
    async def handle(message: holdfast.Message) -> None:
        if message.attempt == 1:
            await message.release()
        elif message.attempt <= 4:
            raise holdfast.Defer(0)
        else:
            raise ValueError("no")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        assert await attempts_until_failed(t, id) == 1 + 3 + 3


async def test_a_redriven_message_has_its_retries_again(worker: holdfast.Worker) -> None:
    @worker.handler("q", retries=2)
    async def handle() -> None:
        raise ValueError("no")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        assert await attempts_until_failed(t, id) == 3
        await worker.client.queue("q").redrive()
        await t.run()
        t.assert_retried(id)
        await t.advance("1h")
        assert await attempts_until_failed(t, id) == 6


@pytest.mark.spec("10.3")
async def test_a_handlers_backoff_doubles_from_its_base(worker: holdfast.Worker) -> None:
    @worker.handler("q", retries=4, backoff="10s")
    async def handle() -> None:
        raise ValueError("no")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        for retry in range(4):
            await t.start()
            delay_ms = t.get("q", id).visible_at - t.clock.now_ms()
            assert 0 <= delay_ms < 10_000 * 2**retry
            await t.advance("1h")


async def test_a_backoff_may_be_a_function_of_the_retry(worker: holdfast.Worker) -> None:
    @worker.handler("q", backoff=lambda retry: f"{retry}m")
    async def handle() -> None:
        raise ValueError("no")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        for retry in (1, 2, 3):
            await t.run()
            assert t.get("q", id).visible_at - t.clock.now_ms() == retry * 60_000
            await t.advance("1h")


async def test_a_backoff_that_raises_leaves_the_queues_own(
    worker: holdfast.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    @worker.handler("q", backoff=lambda retry: 1 / 0)
    async def handle() -> None:
        raise ValueError("no")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.start()
        t.assert_retried(id, "ValueError: no")
    assert "ZeroDivisionError" in caplog.text


# --- Hooks -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("10.3")
async def test_hooks_are_called_in_order_with_the_message_and_its_outcome(worker: holdfast.Worker) -> None:
    told: list[Any] = []

    @worker.on_start
    async def start(given: holdfast.Worker) -> None:
        told.append(("start", given is worker))

    @worker.before
    def before(message: holdfast.Message) -> None:
        told.append(("before", message.json()))

    @worker.on_error
    async def error(message: holdfast.Message, outcome: holdfast.Outcome) -> None:
        told.append(("error", outcome.kind, type(outcome.exception)))

    @worker.after
    async def after(message: holdfast.Message, outcome: holdfast.Outcome) -> None:
        told.append(("after", outcome.kind, outcome.error))

    @worker.on_stop
    def stop(given: holdfast.Worker) -> None:
        told.append(("stop", given is worker))

    @worker.handler("q", retries=0)
    async def handle(number: int) -> None:
        if number == 2:
            raise KeyError("two")

    async with HandlerTest(worker) as t:
        await t.enqueue("q", [1, 2])
        await t.run()
    assert told == [
        ("start", True),
        ("before", 1),
        ("after", "succeeded", None),
        ("before", 2),
        ("error", "failed", KeyError),
        ("after", "failed", "KeyError: 'two'"),
        ("stop", True),
    ]


async def test_what_before_raises_counts_as_the_handlers_error(worker: holdfast.Worker) -> None:
    @worker.before
    def before(message: holdfast.Message) -> None:
        raise ConnectionError("no database")

    @worker.handler("q", retries=0)
    async def handle() -> None: ...

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.run()
        t.assert_failed(id, "ConnectionError: no database")


async def test_what_other_hooks_raise_is_logged_and_changes_nothing(
    worker: holdfast.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    @worker.after
    def after(message: holdfast.Message, outcome: holdfast.Outcome) -> None:
        raise ValueError("a hook's own trouble")

    @worker.handler("q")
    async def handle() -> None: ...

    async with HandlerTest(worker) as t:
        await t.enqueue("q", 1)
        await t.run()
        assert t.stats("q").in_flight == 0
    assert "hook_failed hook=after" in caplog.text


# --- The log and the trace -------------------------------------------------------------------------------------


@pytest.mark.spec("1.5")
async def test_log_lines_about_a_message_have_its_correlation_id_and_queue(
    worker: holdfast.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    @worker.handler("q", tenant="acme")
    async def handle() -> None:
        raise ValueError("no")

    async with HandlerTest(worker) as t:
        await t.enqueue("q", 1, tenant="acme", correlation_id="follow-me")
        await t.start()
    [line] = [each for each in caplog.records if "ValueError" in each.getMessage()]
    assert vars(line)["correlation_id"] == "follow-me"
    assert (vars(line)["tenant"], vars(line)["queue"]) == ("acme", "q")


@pytest.mark.spec("8.10")
async def test_log_lines_about_a_message_have_the_numbers_of_its_queue(
    worker: holdfast.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 8.10."""

    @worker.handler("q", tenant="acme")
    async def handle() -> None:
        raise ValueError("no")

    async with HandlerTest(worker) as t:
        for number in range(2):
            await t.enqueue("q", number, tenant="acme")
            await t.run()
        [tenant] = t._hf.names("acme")
    lines = [vars(each) for each in caplog.records if "ValueError" in each.getMessage()]
    [queue] = tenant.queues
    assert (lines[-1]["tenant_id"], lines[-1]["queue_id"]) == (tenant.tenant_id, queue.queue_id)


@pytest.mark.parametrize("is_plain", [False, True])
async def test_the_producers_trace_is_current_in_the_handler(worker: holdfast.Worker, is_plain: bool) -> None:
    from opentelemetry import trace

    traces: list[int] = []

    async def handle() -> None:
        traces.append(trace.get_current_span().get_span_context().trace_id)

    def handle_plainly() -> None:
        traces.append(trace.get_current_span().get_span_context().trace_id)

    worker.handler("q")(handle_plainly if is_plain else handle)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    async with HandlerTest(worker) as t:
        await t.enqueue("q", 1, headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
        await t.enqueue("q", 1, headers={"traceparent": "nonsense"})
        await t.run()
    assert traces == [int(trace_id, 16), 0]
