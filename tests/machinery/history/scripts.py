"""Scripts of a recorded caller, for the async and the blocking API: each yields steps and receives their answers.

A script yields functions. The runner calls each, awaits the result if it is awaitable, and sends the
answer back, or throws the error.
"""

import itertools
from collections.abc import Callable, Generator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from holdfast.client.payloads.encoding import encode
from holdfast.model.errors import HoldfastError, MessageNotFound, Unavailable
from holdfast.model.message import NewMessage, Receipt, State
from holdfast.model.names import DEFAULT
from holdfast.model.parsing.durations import parse_duration_ms
from holdfast.model.policy import OnTtl, QueuePolicy
from holdfast.model.requests import Filter
from tests.machinery.history import lines as h

T = TypeVar("T")
Script = Generator[Callable[[], Any], Any, T]

# Counters and a scan are read one after the other: so often at most, until nothing changed in between.
_LOOKS = 20
_PAGE = 1_000
_DRAINED_AT_ONCE = 100
_PATIENCES = 20
_DEFAULT_POLICY = QueuePolicy()


def digest(payload: bytes) -> str:
    return blake2b(payload, digest_size=8).hexdigest()


def is_unknown(error: HoldfastError) -> bool:
    """Return whether a call that raised this error may have taken effect."""
    return isinstance(error, Unavailable) and error.facts.get("outcome") != "nothing happened"


class Recorder:
    """Numbers calls and says lines: to a list, a file, or a checker."""

    def __init__(self, say: Callable[[h.Line], None], now_ms: Callable[[], int], first_call: int = 0) -> None:
        self.say = say
        self.now_ms = now_ms
        self._numbers = itertools.count(first_call)
        # As `set_policy` of its callers was answered: what a message without options of its own has.
        self.policies: dict[str, QueuePolicy] = {}

    def number(self) -> int:
        return next(self._numbers)

    def item(self, queue: str, message: NewMessage) -> h.Item:
        """Return the history's record of a message to enqueue."""
        policy = self.policies.get(queue, _DEFAULT_POLICY)
        options: dict[str, Any] = dict(message.options)
        max_retries, ttl = options.get("max_retries"), options.get("ttl")
        return h.Item(
            payload=digest(encode(message.payload)[0]),
            max_retries=policy.max_retries if max_retries is None else max_retries,
            key=options.get("key"),
            group=options.get("group"),
            ttl_ms=policy.ttl_ms if ttl is None else parse_duration_ms("ttl", ttl),
            is_dropped=policy.on_ttl is OnTtl.DROP,
        )


class Scripts:
    """The verbs of a recorded caller. `hf` is a connection of either kind, `caller` the tenant of its credential."""

    def __init__(self, hf: Any, recorder: Recorder, caller: str | None = None) -> None:
        self._hf = hf
        self._recorder = recorder
        self._caller = caller

    def queue(self, name: str) -> Any:
        tenant, _, queue = name.partition("/")
        return self._hf.queue(queue or DEFAULT, tenant=tenant)

    def _recorded(
        self,
        intent: Callable[[int], h.Line],
        do: Callable[[], Any],
        answer: Callable[[int, Any], h.Line],
        answers: tuple[type[HoldfastError], ...] = (),
    ) -> Script[Any]:
        """One call between its lines; answers the second one, and None if the call raised.

        `answers` are the errors that are answers like any other."""
        n = self._recorder.number()
        self._recorder.say(intent(n))
        try:
            result = yield do
        except answers as error:
            result = error
        except HoldfastError as error:
            what = f"{error.code}: {error}"
            self._recorder.say(h.Unknown(n=n, error=what) if is_unknown(error) else h.Refused(n=n, error=what))
            return None
        line = answer(n, result)
        self._recorder.say(line)
        return line

    # --- The verbs -------------------------------------------------------------------------------------------------

    def set_policy(self, queue: str, changes: dict[str, Any]) -> Script[QueuePolicy]:
        """Not in the history: it raises where the call does. What it answers goes into the lines of later messages."""
        policy: QueuePolicy = yield lambda: self.queue(queue).set_policy(**changes)
        self._recorder.policies[queue] = policy
        return policy

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> Script[list[int]]:
        given, now_ms = list(messages), self._recorder.now_ms
        items = [self._recorder.item(queue, each) for each in given]
        line = yield from self._recorded(
            lambda n: h.Enqueue(n=n, queue=queue, items=items, at=now_ms(), caller=self._caller),
            lambda: self.queue(queue).enqueue(given),
            lambda n, ids: h.Enqueued(n=n, ids=[id.snowflake for id in ids], at=now_ms()),
        )
        return [] if line is None else line.ids

    def claim(self, queue: str, limit: int, lease_ms: int, wait_ms: int) -> Script[list[h.Delivered]]:
        line = yield from self._recorded(
            lambda n: h.Claim(n=n, queue=queue, caller=self._caller),
            # With the payloads: a lease may be over before one is read that was left where it is.
            lambda: self.queue(queue).claim(limit, lease=f"{lease_ms}ms", wait=f"{wait_ms}ms", stream=False),
            lambda n, messages: h.Claimed(n=n, at=self._recorder.now_ms(), deliveries=list(map(_delivered, messages))),
        )
        return [] if line is None else line.deliveries

    def settle(self, queue: str, verb: str, receipts: Sequence[str], options: dict[str, Any]) -> Script[list[bool]]:
        now_ms, given = self._recorder.now_ms, list(receipts)
        leases = [(parsed.id, parsed.version) for parsed in map(Receipt.parse, given)]

        def settled(n: int, results: list[Any]) -> h.Settled:
            unsure = [result.is_unsure for result in results]
            return h.Settled(
                n=n,
                ok=[result.ok for result in results],
                expires_at=[result.lease_expires_at for result in results] if verb == "extend" else [],
                unsure=unsure if any(unsure) else [],
                at=now_ms(),
            )

        line = yield from self._recorded(
            lambda n: h.Settle(n=n, at=now_ms(), queue=queue, verb=verb, leases=leases, caller=self._caller),
            lambda: _verdict(self.queue(queue), verb, given, options),
            settled,
        )
        return [] if line is None else line.ok

    def redrive(self, queue: str) -> Script[int]:
        line = yield from self._recorded(
            lambda n: h.Redrive(n=n, queue=queue, caller=self._caller),
            lambda: self.queue(queue).redrive(),
            lambda n, changed: h.Redriven(n=n, changed=changed.changed),
        )
        return 0 if line is None else line.changed

    def remove(self, queue: str, verb: str, id: int | None, options: dict[str, Any]) -> Script[int]:
        def removed(n: int, answer: Any) -> h.Removed:
            if verb == "delete":
                return h.Removed(n=n)
            if verb == "remove":
                return h.Removed(n=n, changed=0 if isinstance(answer, MessageNotFound) else 1)
            return h.Removed(n=n, changed=answer.changed)

        line = yield from self._recorded(
            lambda n: h.Remove(n=n, queue=queue, verb=verb, id=id, caller=self._caller),
            lambda: _removal(self.queue(queue), verb, id, options),
            removed,
            answers=(MessageNotFound,),
        )
        return 0 if line is None else line.changed or 0

    def move(self, queue: str, to: str, ids: Sequence[int], state: str) -> Script[int]:
        tenant, _, target = to.partition("/")
        given, is_dropped = list(ids), self._recorder.policies.get(to, _DEFAULT_POLICY).on_ttl is OnTtl.DROP
        which = Filter(ids=frozenset(given))
        line = yield from self._recorded(
            lambda n: h.Move(n=n, queue=queue, to=to, ids=given, is_dropped=is_dropped, caller=self._caller),
            lambda: self.queue(queue).move(target, tenant=tenant, filter=which, state=state),
            lambda n, changed: h.Moved(n=n, changed=changed.changed),
        )
        return 0 if line is None else line.changed

    # --- Looking ---------------------------------------------------------------------------------------------------

    def count(self, queue: str) -> Script[h.Counted]:
        """Hold the counters against a full scan, while nobody else uses the queue."""
        for _ in range(_LOOKS):
            began = self._recorder.now_ms()
            before = yield from self._stats(queue)
            found = yield from self.listed(queue)
            if before == (yield from self._stats(queue)):
                break  # nothing was swept meanwhile
        ended = self._recorder.now_ms()
        scanned = _scan(found, ended)
        if scanned != _scan(found, began - 1):
            # Something came due while it was looked at: what is delayed cannot be told from what is ready.
            before["ready"] += before.pop("delayed")
            scanned["ready"] += scanned.pop("delayed")
        line = h.Counted(queue=queue, counted=before, scanned=scanned)
        self._recorder.say(line)
        return line

    def _stats(self, queue: str) -> Script[dict[str, int]]:
        stats = yield self.queue(queue).stats
        return {name: getattr(stats, name) for name in ("ready", "delayed", "in_flight", "failed", "bytes")}

    def listed(self, queue: str) -> Script[list[Any]]:
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = yield partial(self.queue(queue).list, limit=_PAGE, cursor=cursor)
            found += page
            cursor = page.cursor
            if cursor is None:
                return found

    def drain(
        self, queues: Sequence[str], lease_ms: int, wait_ms: int, patience_ms: int, pause: Callable[[], Any] | None
    ) -> Script[bool]:
        """Claim and ack until nothing comes any more; then say what is left.

        What has not come when `patience_ms` went by without a delivery is stranded. So is what comes again and again.
        """
        last_at = began = self._recorder.now_ms()
        while unfinished := (yield from self.backlog(queues)):
            for name in queues:
                deliveries = yield from self.claim(name, _DRAINED_AT_ONCE, lease_ms, wait_ms)
                if deliveries:
                    last_at = self._recorder.now_ms()
                    yield from self.settle(name, "ack", [each.receipt for each in deliveries], {})
            now = self._recorder.now_ms()
            if now - last_at > patience_ms or now - began > _PATIENCES * patience_ms:
                break
            if pause is not None:
                yield pause
        for name in queues:
            for info in (yield from self.listed(name)):
                yield from self._say_left(name, info)
        self._recorder.say(h.Drained(at=self._recorder.now_ms()))
        return not unfinished

    def backlog(self, queues: Sequence[str]) -> Script[int]:
        """Return the number of messages that are neither acked nor failed."""
        total = 0
        for name in queues:
            stats = yield self.queue(name).stats
            total += stats.ready + stats.delayed + stats.in_flight
        return total

    def _say_left(self, name: str, info: Any) -> Script[None]:
        try:
            full = yield lambda: self.queue(name).get(info.id, payload=True)
        except MessageNotFound:
            return  # its TTL ran out just now
        payload = digest(full.payload or b"")
        match full.state:
            case State.FAILED:
                self._recorder.say(h.DeadLetter(id=info.snowflake, queue=name, payload=payload))
            case State.SUCCEEDED:  # kept for look-up
                pass
            case state:
                self._recorder.say(h.Stranded(id=info.snowflake, queue=name, payload=payload, state=state))

    def bring_events(self) -> Script[None]:
        """Read the journal. The server that is asked publishes its own events first."""
        yield partial(self._hf.journal, None, 1)

    def read_journal(self) -> Script[int]:
        """Every event that is kept; to be said before the history ends."""
        position: str | None = None
        total = 0
        while events := (yield partial(self._hf.journal, position, 10 * _PAGE)):
            position = events.next
            total += len(events)
            for event in events:
                self._recorder.say(h.Journalled(id=event.snowflake, event=event.event))
        return total


def _delivered(message: Any) -> h.Delivered:
    return h.Delivered(
        id=message.id.snowflake,
        version=message.version,
        attempt=message.attempt,
        payload=digest(message.payload),
        expires_at=message.lease_expires_at,
        group=message.group,
        receipt=message.receipt,
    )


def _verdict(queue: Any, verb: str, receipts: list[str], options: dict[str, Any]) -> Any:
    match verb:
        case "ack":
            return queue.ack(receipts)
        case "nack":
            return queue.nack(receipts, "failed", **options)
        case "final":
            return queue.nack(receipts, "broken", final=True)
        case "defer":
            return queue.nack(receipts, defer=True, **options)
        case "release":
            return queue.release(receipts)
        case "extend":
            return queue.extend(receipts, **options)
    raise ValueError(f"{verb!r} is no verdict")


def _removal(queue: Any, verb: str, id: int | None, options: dict[str, Any]) -> Any:
    match verb:
        case "purge":
            return queue.purge()
        case "purge_failed":
            return queue.purge("failed")
        case "cancel":
            return queue.cancel(options.get("filter"))
        case "delete":
            return queue.delete(**options)
        case "remove":
            return queue.remove(id)
    raise ValueError(f"{verb!r} removes nothing")


def _scan(found: list[Any], now_ms: int) -> dict[str, int]:
    counts = dict.fromkeys(("ready", "delayed", "in_flight", "failed", "bytes"), 0)
    for info in found:
        if info.state is State.SUCCEEDED:
            continue
        is_delayed = info.state is State.READY and info.visible_at > now_ms
        counts["delayed" if is_delayed else info.state] += 1
        counts["bytes"] += info.bytes
    return counts
