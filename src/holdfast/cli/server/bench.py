"""`holdfast bench`: how fast a store or a server is from here, in a few seconds."""

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
    messages: Annotated[int, typer.Option("--messages", "-n", min=10, help="So many in batches.")] = 5_000,
    singles: Annotated[int, typer.Option("--singles", min=1, help="So many one by one.")] = 300,
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, max=10_000, help="Messages in a batch.")] = 100,
    size: Annotated[int, typer.Option("--size", min=0, help="Bytes of each payload.")] = 256,
) -> None:
    """Measure enqueue, claim and ack, in batches and one by one, as one caller sees them.

    Without --url, of a new store in a temporary directory; else in a queue of its own, which is deleted afterwards.
    """
    with _subject(cli) as queue:
        rows = []
        with cli.progress("measuring", 7) as told:
            for number, row in enumerate(_steps(queue, messages, singles, batch, os.urandom(size)), 1):
                told(number)
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

    for several, total, how in ((batch, messages, f"in batches of {batch:,}"), (1, singles, "one by one")):
        yield _measure(f"enqueue {how}", total, several, lambda limit: len(queue.enqueue([payload] * limit)))
        yield _measure(f"claim {how}", total, several, claim)
        yield _measure(f"ack {how}", total, several, ack)

    def whole(_: int) -> int:
        queue.enqueue(payload)
        return claim(1) and ack(1)

    yield _measure("enqueue, claim and ack", singles, 1, whole)


def _measure(step: str, total: int, several: int, act: Callable[[int], int]) -> dict[str, Any]:
    took: list[float] = []
    done = 0
    while done < total:
        began = steady_s()
        number = act(min(several, total - done))
        took.append(steady_s() - began)
        if not number:
            break
        done += number
    took.sort()
    seconds = sum(took)
    return {
        "step": step,
        "messages": done,
        "seconds": round(seconds, 3),
        "per_s": round(done / max(seconds, 1e-9)),
        "p50_ms": round(1_000 * took[len(took) // 2], 3),
        "p99_ms": round(1_000 * took[min(len(took) - 1, len(took) * 99 // 100)], 3),
    }


@contextmanager
def _subject(cli: CommandSession) -> Iterator["holdfast.Queue"]:
    if "url" not in cli.place.origins:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
            inner = CommandSession(replace(cli.place, url=f"{directory}/store"), cli.output, may_create=True)
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
