"""The operations of the table over Cap'n Proto: by name, and the few that have a method of their own."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from holdfast.client.capnp.calls import Calls, Request
from holdfast.client.capnp.shapes import stats_of, summary_of, write_ref
from holdfast.client.http.failures import strange_answer
from holdfast.client.remote import prepared, written
from holdfast.model.names import QueueRef
from holdfast.wire.capnp_arguments import CAPNP_BINDINGS
from holdfast.wire.operation import Operation
from holdfast.wire.operations import DELETE, QUEUES, STATS

R = TypeVar("R")
A = TypeVar("A")


class CapnpOperations:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        request = prepared(operation, request)
        if operation.is_by_name:
            return await self._operate(operation, ref, request)
        method, fill, read = _METHODS[operation.name]
        sent = Request(
            method,
            lambda out: fill(out, ref, request),
            is_repeatable=operation.may_repeat(request),
            is_long=operation.is_long,
        )
        return cast(A, read(await self._calls.ask(sent)))

    async def _operate(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        binding = CAPNP_BINDINGS[operation.name]
        arguments = written(operation, lambda: binding.write(request))

        def fill(out: Any) -> None:
            write_ref(out, ref)
            out.operation = operation.name
            out.arguments = arguments

        sent = Request("operate", fill, is_repeatable=operation.may_repeat(request), is_long=operation.is_long)
        answer = await self._calls.ask(sent)
        try:
            return cast(A, binding.read_answer(answer.answer))
        except msgspec.DecodeError:
            raise strange_answer(self._calls.url) from None


def _fill_queues(out: Any, ref: QueueRef, request: Any) -> None:
    out.tenant = ref.tenant


def _fill_stats(out: Any, ref: QueueRef, request: Any) -> None:
    write_ref(out, ref)


def _fill_delete(out: Any, ref: QueueRef, request: Any) -> None:
    write_ref(out, ref)
    out.forceAfterMs = request.force_after_ms


# By the name of the operation: its method in the schema, how that is filled in, and how its answer is read.
_METHODS: dict[str, tuple[str, Callable[[Any, QueueRef, Any], None], Callable[[Any], object]]] = {
    QUEUES.name: ("listQueues", _fill_queues, lambda answer: [summary_of(each) for each in answer.queues]),
    STATS.name: ("stats", _fill_stats, lambda answer: stats_of(answer.stats)),
    DELETE.name: ("deleteQueue", _fill_delete, lambda answer: None),
}
