"""The cost of sampling which queues read and write most, in processor time.

The baseline is the same store with the statements on samples taken out of the functions that have them, so that it also
lacks the counting that nearly every access costs.
"""

import ast
import inspect
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import holdfast
from bench.embedded.raw import scratch
from bench.report import Figure
from holdfast.stores.rocks.engine.open_commit import OpenCommit
from holdfast.stores.rocks.engine.reads import MergedReads

PAYLOAD = b"x" * 256
_SAMPLED = (
    (OpenCommit, ("take",)),
    (MergedReads, ("get", "get_many", "get_uncached", "floor", "items", "scan")),
)


def _without_samples(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without its statements on `samples`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    [defined] = tree.body
    assert isinstance(defined, ast.FunctionDef)
    kept = [each for each in defined.body if not any(_is_sample(node) for node in ast.walk(each))]
    assert len(defined.body) - len(kept) == 3, f"{function.__qualname__} has no longer the three statements of a sample"
    defined.body = kept
    found: dict[str, Any] = {}
    exec(compile(tree, "<without samples>", "exec"), sys.modules[function.__module__].__dict__, found)
    return found[defined.name]


def _is_sample(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "samples"


@contextmanager
def _unsampled() -> Iterator[None]:
    before = [(owner, name, owner.__dict__[name]) for owner, names in _SAMPLED for name in names]
    without = [_without_samples(function) for _, _, function in before]
    try:
        for (owner, name, _), function in zip(before, without, strict=True):
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _singles(queue: holdfast.Queue, messages: int) -> None:
    """Enqueue, claim and ack single messages, with keys and retries, which read and write the most for each message."""
    for number in range(messages // 2):
        queue.enqueue(PAYLOAD)
        [message] = queue.claim()
        message.ack()
        queue.enqueue(PAYLOAD, key=f"{time.monotonic_ns()}-{number}")
        [message] = queue.claim()
        message.nack("again", delay=0)
        [message] = queue.claim()
        message.ack()


def _batches(queue: holdfast.Queue, messages: int) -> None:
    for _ in range(messages // 100):
        queue.enqueue([PAYLOAD] * 100)
        queue.ack(queue.claim(limit=100))


def _cpu_us(work: Callable[[], None]) -> float:
    started = time.process_time_ns()
    work()
    return (time.process_time_ns() - started) / 1_000


def _cost(what: str, work: Callable[[holdfast.Queue, int], None], messages: int, rounds: int) -> Figure:
    """Measure short rounds, sampled and unsampled in turn."""
    sampled, unsampled = [], []
    with scratch() as path, holdfast.open(str(path), durability="os") as hf:
        once = partial(work, hf.queue("bench"), messages)
        once()
        for number in range(2 * rounds):
            # Two pairs in opposite order, so that a slow change of the machine's speed favours neither side.
            for is_sampled in (number % 2 == 0, number % 2 == 1):
                if is_sampled:
                    sampled.append(_cpu_us(once))
                else:
                    with _unsampled():
                        unsampled.append(_cpu_us(once))
    ratios = [mine / other for mine, other in zip(sampled, unsampled, strict=True)]
    return Figure(
        f"CPU of {what} with samples of the busiest queues",
        f"{statistics.median(sampled) / messages:.1f} us",
        "without them",
        f"{statistics.median(unsampled) / messages:.1f} us",
        statistics.median(ratios),
        goal=1.01,
        lower_is_better=True,
    )


def measure(rounds: int = 100) -> Iterator[Figure]:
    """One figure after the other, as they are measured."""
    yield _cost("a lifecycle of single messages", _singles, 400, rounds)
    yield _cost("a lifecycle in batches of 100", _batches, 4_000, rounds)
