"""`holdfast bench`: measure the speed of a store or a server from this machine, in a few seconds."""

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.session import CommandSession
from holdfast.clock import steady_s
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    import holdfast

_LEASE = "10m"


def bench(
    cli: CommandSession,
    messages: Annotated[int, typer.Option("--messages", "-n", min=10, help="Number of messages in batches.")] = 5_000,
    singles: Annotated[int, typer.Option("--singles", min=1, help="Number of messages one by one.")] = 300,
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, max=10_000, help="Messages per batch.")] = 100,
    size: Annotated[int, typer.Option("--size", min=0, help="Payload size in bytes.")] = 256,
) -> None:
    """Measure the speed of enqueue, claim and ack for one caller.

    Messages are measured in batches and one by one. Without --url, a new store in a temporary directory is measured.
    With --url, the messages go through a new queue, which is deleted afterwards.
    """
    with _measured_queue(cli) as queue:
        rows = []
        with cli.progress("measuring", 7) as report:
            for number, row in enumerate(_steps(queue, messages, singles, batch, os.urandom(size)), 1):
                report(number)
                rows.append(row)
    cli.output.rows(rows)


def _steps(
    queue: "holdfast.Queue", messages: int, singles: int, batch: int, payload: bytes
) -> Iterator[dict[str, Any]]:
    held: list[Any] = []

    def claim(limit: int) -> int:
        claimed = queue.claim(limit, lease=_LEASE)
        held.extend(claimed)
        return len(claimed)

    def ack(limit: int) -> int:
        some = held[:limit]
        del held[:limit]
        return sum(result.ok for result in queue.ack(some))

    for batch_size, total, suffix in ((batch, messages, f"in batches of {batch:,}"), (1, singles, "one by one")):
        yield _measure(f"enqueue {suffix}", total, batch_size, lambda limit: len(queue.enqueue([payload] * limit)))
        yield _measure(f"claim {suffix}", total, batch_size, claim)
        yield _measure(f"ack {suffix}", total, batch_size, ack)

    def enqueue_claim_ack(_: int) -> int:
        queue.enqueue(payload)
        return claim(1) and ack(1)

    yield _measure("enqueue, claim and ack", singles, 1, enqueue_claim_ack)


def _measure(step: str, total: int, batch_size: int, act: Callable[[int], int]) -> dict[str, Any]:
    durations_s: list[float] = []
    done = 0
    while done < total:
        began = steady_s()
        number = act(min(batch_size, total - done))
        durations_s.append(steady_s() - began)
        if not number:
            break
        done += number
    durations_s.sort()
    seconds = sum(durations_s)
    return {
        "step": step,
        "messages": done,
        "seconds": round(seconds, 3),
        "per_s": round(done / max(seconds, 1e-9)),
        "p50_ms": round(1_000 * durations_s[len(durations_s) // 2], 3),
        "p99_ms": round(1_000 * durations_s[min(len(durations_s) - 1, len(durations_s) * 99 // 100)], 3),
    }


@contextmanager
def _measured_queue(cli: CommandSession) -> Iterator["holdfast.Queue"]:
    if "url" not in cli.target.origins:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
            inner = CommandSession(replace(cli.target, url=f"{directory}/store"), cli.output, may_create=True)
            try:
                yield inner.queue("bench")
            finally:
                inner.close()
        return
    queue = cli.queue(f"holdfast-bench-{secrets.token_hex(4)}")
    try:
        yield queue
    finally:
        with suppress(HoldfastError):
            queue.delete(0)
