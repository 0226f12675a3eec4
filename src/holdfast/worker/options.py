"""What `@worker.handler(...)` is given, checked when it is given."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.model.errors import InvalidArgument
from holdfast.model.message import MAX_RETRIES
from holdfast.model.names import QueueRef, parse_ref
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import Duration, parse_duration_ms
from holdfast.model.rules.retry import backoff_ms

MAX_CONCURRENCY = 1_000
# Of a handler that gives its own base: the queue's cap is made for the queue's base.
BACKOFF_CAP_MS = 300_000

Backoff = Duration | Callable[[int], Duration]


class Pool(StrEnum):
    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    ref: QueueRef
    pool: Pool
    concurrency: int
    lease_ms: int
    # None: as long as it takes.
    timeout_ms: int | None
    # For a handler in processes: how long one may take to start and import it; None: no limit.
    startup_timeout_ms: int | None
    # For a handler in threads: how many may run past their timeout before the worker counts as stuck.
    max_stuck_threads: int
    # None: as the queue, or the message, says.
    retries: int | None
    # A base in milliseconds, doubled with each retry; a function of the retry's number, from 1; None: the queue's.
    backoff: int | Callable[[int], Duration] | None
    with_state: bool
    # An async handler reads large payloads itself, part by part. Elsewhere `message.payload` can read them when asked.
    streams: bool = False

    def delay_ms(self, retry: int, roll: float) -> int | None:
        """How long until the retry with this number, 0 for the first; None: the queue decides."""
        if self.backoff is None:
            return None
        if callable(self.backoff):
            return parse_duration_ms("backoff", self.backoff(retry + 1))
        return backoff_ms(retry, self.backoff, BACKOFF_CAP_MS, roll)


def parse_options(
    queue: object,
    tenant: object,
    *,
    is_async: bool,
    concurrency: Any,
    lease: Any,
    timeout: Any,
    startup_timeout: Any,
    max_stuck_threads: Any,
    retries: Any,
    backoff: Any,
    process: Any,
    pool: Any,
    state: Any,
    stream: Any = False,
) -> Options:
    lease_ms = parse_duration_ms("lease", lease)
    timeout_ms = None if timeout is None else parse_duration_ms("timeout", timeout)
    startup_ms = None if startup_timeout is None else parse_duration_ms("startup_timeout", startup_timeout)
    for name, value in (("lease", lease_ms), ("timeout", timeout_ms), ("startup_timeout", startup_ms)):
        if value == 0:
            raise InvalidArgument(f"{name} must be longer than nothing", field=name)
    slots = check_integer("concurrency", concurrency, 1, MAX_CONCURRENCY)
    most_stuck = slots if max_stuck_threads is None else max_stuck_threads
    return Options(
        ref=parse_ref(tenant, queue),
        pool=_pool(pool, process, is_async=is_async),
        concurrency=slots,
        lease_ms=lease_ms,
        timeout_ms=timeout_ms,
        startup_timeout_ms=startup_ms,
        max_stuck_threads=check_integer("max_stuck_threads", most_stuck, 0, MAX_CONCURRENCY),
        retries=None if retries is None else check_integer("retries", retries, 0, MAX_RETRIES),
        backoff=backoff if backoff is None or callable(backoff) else parse_duration_ms("backoff", backoff),
        with_state=_flag("state", state),
        streams=_flag("stream", stream),
    )


def _pool(pool: Any, process: Any, *, is_async: bool) -> Pool:
    wanted = pool if pool is not None else "process" if _flag("process", process) else None
    if wanted is None:
        return Pool.LOOP if is_async else Pool.THREAD
    if wanted not in (Pool.THREAD, Pool.PROCESS) or (wanted == Pool.THREAD and process):
        raise InvalidArgument(f'pool {str(wanted)[:80]!r} must be "thread" or "process"', field="pool")
    if is_async:
        raise InvalidArgument(
            f"an async handler runs on the worker's event loop: make it a plain `def` for a {wanted} pool", field="pool"
        )
    return Pool(wanted)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} {str(value)[:80]!r} must be True or False", field=name)
    return value
