"""About two hundred operations on a small store: everything that writes, flushes and compactions among them."""

import os
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Raw

from holdfast.client.blocking import Holdfast
from holdfast.clock import steady_s
from holdfast.model.answers import Info
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Draft, NewMessage, Receipt, State
from holdfast.model.names import parse_ref
from holdfast.testing.clock import START_MS, ManualClock
from holdfast.wire.requests import StateRequest
from tests.machinery.disk.notes import Notes, Reached, Time
from tests.machinery.disk.store import core_of, open_small, run, sweep
from tests.machinery.history import ENDLESS, Enqueue, Enqueued, Opened
from tests.machinery.history.recording import Caller
from tests.machinery.history.scripts import Recorder

MAIL, PAY, LATE, GONE, KEPT = "acme/mail", "acme/pay", "zeta/late", "zeta/gone", "zeta/kept"
TICKS = "acme/ticks"
# Those whose messages a history follows; what a schedule enqueues nobody called for. They are made in this order: of
# four shards, the first has MAIL, the third GONE and KEPT, the last PAY and LATE.
QUEUES = [MAIL, PAY, LATE, GONE, KEPT]
# From queue to queue, and from shard to shard.
_MOVES = [(MAIL, PAY), (PAY, MAIL), (MAIL, KEPT), (KEPT, MAIL), (LATE, KEPT), (PAY, KEPT), (KEPT, PAY)]
_MOVED_AT_ONCE = 4
ROUNDS = 10
STORE, COPY = "store", "copy"
# In pieces.
LARGE = (1 << 20) + 30_001
_UPLOADED_AT_ONCE = 200_000
# Openings of a store that has stopped, of which each may be what fails.
RESTARTS = 100
_GROUPS = ["a", "b"]
# The longest pause between two attempts to reopen a store, and how long one may take.
_MOST_PAUSE_MS = 60_000
_PATIENCE_S = 60.0


class _NotClosed(Exception):
    """A closing did not end: the store is in use, by this process."""


class DiskScript:
    """Runs once, below `root`, on a store with this many shards. Whatever it is answered it says to `notes`.

    With `goes_on` calls may fail. A store that has stopped is left to reopen by itself in every second session, and is
    closed and opened again in the others.
    """

    def __init__(
        self, root: Path, notes: Notes, *, seed: int, durability: str, shards: int = 1, goes_on: bool = False
    ) -> None:
        self._root = root
        self._notes = notes
        self._durability = durability
        self._shards = shards
        self._goes_on = goes_on
        self._dice = random.Random(f"script {seed}")
        self._clock = ManualClock(START_MS)
        self._recorder = Recorder(notes.line, self._clock.now_ms)
        self._session = 0
        self._payloads = 0
        self._receipts: list[tuple[str, str]] = []
        self._hf: Holdfast
        self._is_open = False

    def run(self) -> None:
        try:
            self._run()
        except _NotClosed:
            # RocksDB's own: a process that goes on cannot open the store again. The next one can, which is looked at.
            self._notes.note(Reached("not closed"))

    def _run(self) -> None:
        self._step(self._open)
        self._step(self._prepare)
        for number in range(ROUNDS):
            self._round(number)
        self._step(self._close)
        self._notes.note(Reached("end"))

    def _step(self, step: Callable[[], object]) -> None:
        if not self._goes_on:
            step()
            return
        with suppress(HoldfastError):  # a step that was refused, as a backup without room is, need not stop the store
            step()
        if step != self._close and (not self._is_open or self._engine_stopped()):
            self._refused_while_down()
            if self._is_open and self._session % 2:
                self._wait_for_reopening()
            else:
                self._restart()

    def _open(self) -> None:
        self._hf = open_small(
            self._root / STORE,
            self._clock,
            durability=self._durability,
            seed=self._dice.randrange(1 << 30),
            shards=self._shards,
        )
        self._is_open = True
        self._caller = Caller(self._hf, self._recorder)
        self._begin_session()

    def _begin_session(self) -> None:
        self._notes.line(Opened(session=self._session, durability=self._durability))
        self._notes.note(Reached("open"))
        self._session += 1

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._hf.close()

    def _reopen(self) -> None:
        self._close()
        self._open()

    # --- After a failure -------------------------------------------------------------------------------------------

    def _engine_stopped(self) -> bool:
        return not run(self._hf, core_of(self._hf).store.figures()).is_up

    def _refused_while_down(self) -> None:
        """A store that has stopped answers nobody."""
        if self._is_open:
            self._notes.note(Reached("down"))
            self._enqueue_one()
            self._work(MAIL, 1)
            self._notes.note(Reached("up"))

    def _wait_for_reopening(self) -> None:
        ends_s = steady_s() + _PATIENCE_S
        reopening = core_of(self._hf).store._reopening  # type: ignore[attr-defined]  # the embedded store's
        while self._engine_stopped():
            if reopening.is_lost:
                raise _NotClosed
            if not reopening.is_trying:
                # The pause before the next attempt is over.
                self._pass_time(_MOST_PAUSE_MS)
            assert steady_s() < ends_s, "the store does not reopen"
        self._begin_session()

    def _restart(self) -> None:
        for _ in range(RESTARTS):
            try:
                self._reopen()
                return
            except HoldfastError as error:
                if error.facts.get("pid") == os.getpid():
                    raise _NotClosed from None
        raise AssertionError("the store does not open again")

    # --- The operations --------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        for queue in QUEUES:
            self._set_policy(queue, lease_ms=3_000)
        self._schedule(1_500)
        if self._shards > 1:
            store = core_of(self._hf).store
            found = {queue: store.shard_of(parse_ref(*queue.split("/"))) for queue in QUEUES}
            assert all(found[source] != found[target] for source, target in _MOVES), f"moves stay in a shard: {found}"

    def _round(self, number: int) -> None:
        steps: list[Callable[[], object]] = [
            self._enqueue_one,
            self._enqueue_batch,
            self._enqueue_keys,
            self._enqueue_groups,
            self._enqueue_late,
            lambda: self._work(MAIL, 4),
            lambda: self._work(MAIL, 2),
            lambda: self._work(PAY, 4),
            lambda: self._work(LATE, 2),
            lambda: self._work(KEPT, 1),
            self._move_some,
            self._move_some,
            self._forget_some,
            self._use_old_receipt,
            self._save_progress,
            self._let_time_pass,
        ]
        steps += self._specials(number)
        self._dice.shuffle(steps)
        for step in steps:
            self._step(step)

    def _specials(self, number: int) -> list[Callable[[], object]]:
        """Those that come once or twice."""
        match number % ROUNDS:
            case 1:
                return [self._enqueue_large]
            case 2:
                return [self._move_large, lambda: self._schedule(2_500), lambda: self._set_policy(MAIL, lease_ms=4_000)]
            case 3:
                return [self._upload, lambda: self._caller.redrive(MAIL)]
            case 4:
                return [self._reopen, self._move_large]
            case 5:
                return [self._backup, lambda: self._caller.remove(MAIL, "purge_failed"), self._enqueue_gone]
            case 6:
                return [lambda: self._caller.remove(GONE, "delete", force_after="1s"), lambda: self._schedule(None)]
            case 7:
                return [lambda: self._caller.remove(LATE, "cancel"), self._remove_one]
            case 8:
                return [lambda: self._caller.remove(PAY, "purge"), lambda: self._schedule(4_000)]
            case 9:
                return [lambda: self._caller.redrive(MAIL), lambda: self._caller.redrive(KEPT)]
        return []

    # --- Enqueueing ------------------------------------------------------------------------------------------------

    def _payload(self, size: int | None = None) -> bytes:
        self._payloads += 1
        size = int(self._dice.random() ** 3 * 6_000) if size is None else size
        return b"%d:" % self._payloads + self._dice.randbytes(size)

    def _enqueue_one(self) -> None:
        self._caller.enqueue(MAIL, [NewMessage(self._payload(), max_retries=self._dice.choice([ENDLESS, 1, 0]))])

    def _enqueue_batch(self) -> None:
        many = [NewMessage(self._payload(), max_retries=1) for _ in range(self._dice.choice([2, 3, 5]))]
        self._caller.enqueue(MAIL, many)

    def _enqueue_keys(self) -> None:
        """The payload of a key is always the same."""
        keys = {f"k{self._dice.randrange(12)}" for _ in range(2)}
        self._caller.enqueue(MAIL, [NewMessage(b"key %s" % key.encode(), key=key, max_retries=2) for key in keys])

    def _enqueue_groups(self) -> None:
        group = self._dice.choice(_GROUPS)
        many = [NewMessage(self._payload(), group=group, max_retries=ENDLESS) for _ in range(2)]
        self._caller.enqueue(PAY, many)

    def _enqueue_late(self) -> None:
        delays = [f"{self._dice.randrange(200, 4_000)}ms" for _ in range(2)]
        self._caller.enqueue(LATE, [NewMessage(self._payload(), delay=delay, max_retries=1) for delay in delays])
        self._caller.enqueue(LATE, [NewMessage(self._payload(), ttl=f"{self._dice.randrange(500, 5_000)}ms")])

    def _enqueue_gone(self) -> None:
        self._caller.enqueue(GONE, [NewMessage(self._payload(), max_retries=1) for _ in range(3)])

    def _enqueue_large(self) -> None:
        self._caller.enqueue(MAIL, [NewMessage(self._payload(LARGE), max_retries=ENDLESS)])

    def _upload(self) -> None:
        """A payload that comes bit by bit: its pieces are written before the message is."""
        messages, ref = core_of(self._hf).messages, parse_ref(*MAIL.split("/"))
        payload, n = self._payload(LARGE), self._recorder.number()
        item = self._recorder.item(MAIL, NewMessage(payload, max_retries=ENDLESS))
        self._notes.line(Enqueue(n=n, queue=MAIL, items=[item], at=self._clock.now_ms()))
        upload = run(self._hf, messages.upload(ref, Draft(payload=b"", max_retries=ENDLESS)))
        for at in range(0, len(payload), _UPLOADED_AT_ONCE):
            run(self._hf, upload.write(payload[at : at + _UPLOADED_AT_ONCE]))
        [answer] = run(self._hf, messages.enqueue(ref, [run(self._hf, upload.finish())]))
        upload.close()
        self._notes.line(Enqueued(n=n, ids=[answer.snowflake], at=self._clock.now_ms()))

    # --- Claiming and settling -------------------------------------------------------------------------------------

    def _claim(self, queue: str, limit: int) -> list[str]:
        receipts = [each.receipt for each in self._caller.claim(queue, limit, lease_ms=3_000)]
        self._receipts += [(queue, each) for each in receipts]
        return receipts

    def _work(self, queue: str, limit: int) -> None:
        receipts = self._claim(queue, limit)
        if receipts and self._dice.random() < 0.3:
            self._caller.settle(queue, "ack", receipts)
            return
        for receipt in receipts:
            self._act(queue, receipt)

    def _act(self, queue: str, receipt: str) -> None:
        match self._dice.choice(["ack", "ack", "ack", "extend", "nack", "final", "release", "defer", "leave"]):
            case "leave":
                pass
            case "extend":
                self._caller.settle(queue, "extend", [receipt], lease="5s")
            case "nack" | "defer" as verb:
                self._caller.settle(queue, verb, [receipt], delay=f"{self._dice.choice([0, 900])}ms")
            case verb:
                self._caller.settle(queue, verb, [receipt])

    def _forget_some(self) -> None:
        self._claim(self._dice.choice([MAIL, LATE]), 2)

    def _use_old_receipt(self) -> None:
        if self._receipts:
            queue, receipt = self._dice.choice(self._receipts)
            self._caller.settle(queue, self._dice.choice(["ack", "nack", "extend", "release"]), [receipt])

    def _save_progress(self) -> None:
        """A state document under a lease that holds."""
        for receipt in self._claim(MAIL, 1):
            parsed, document = Receipt.parse(receipt), b'"%d"' % self._dice.randrange(1 << 30)
            core, ref = core_of(self._hf), parse_ref(*MAIL.split("/"))
            was = run(self._hf, core.store.get(ref, parsed.id)).state
            request = StateRequest(receipt=parsed, document=Raw(document), etag=was.etag)
            self._notes.set(
                f"state {parsed.id}",
                document.decode(),
                partial(run, self._hf, core.messages.save_state(ref, request)),
            )

    def _remove_one(self) -> None:
        infos = self._listed(MAIL)[:5]
        if infos:
            self._caller.remove(MAIL, "remove", id=self._dice.choice(infos).snowflake)

    # --- Moving ----------------------------------------------------------------------------------------------------

    def _move_some(self) -> None:
        source, target = self._dice.choice(_MOVES)
        state = self._dice.choice([State.READY, State.READY, State.FAILED])
        found = [info for info in self._listed(source) if info.state is state]
        chosen = self._dice.sample(found, min(len(found), self._dice.randint(1, _MOVED_AT_ONCE)))
        self._move(source, target, chosen)

    def _move_large(self) -> None:
        """The payloads are copied first: between that and the move there are many writes."""
        for source, target in ((MAIL, KEPT), (PAY, KEPT), (KEPT, MAIL)):
            found = [info for info in self._listed(source) if info.state is State.READY]
            if any(info.bytes > LARGE for info in found):
                self._move(source, target, sorted(found, key=lambda info: -info.bytes)[:_MOVED_AT_ONCE])
                return

    def _move(self, source: str, target: str, chosen: list[Info]) -> None:
        if chosen:
            self._caller.move(source, target, [info.snowflake for info in chosen], state=chosen[0].state)

    def _listed(self, queue: str) -> list[Info]:
        tenant, _, name = queue.partition("/")
        return self._hf.queue(name, tenant=tenant).list(limit=1_000)

    # --- Operators and time ----------------------------------------------------------------------------------------

    def _set_policy(self, queue: str, **changes: Any) -> None:
        changes = {"backoff_base_ms": 100, "backoff_cap_ms": 2_000, **changes}
        self._notes.set(f"policy {queue}", str(changes["lease_ms"]), lambda: self._caller.set_policy(queue, **changes))

    def _schedule(self, every_ms: int | None) -> None:
        ticks = self._hf.queue("ticks", tenant="acme")

        def put() -> None:
            if every_ms is None:
                ticks.unschedule("often")
            else:
                ticks.schedule("often", every=f"{every_ms}ms", payload=b"tick")

        self._notes.set("schedule", "" if every_ms is None else str(every_ms), put)

    def _backup(self) -> None:
        place = self._root / f"{COPY}-{self._session}"
        self._notes.set("backup", place.name, lambda: self._hf.backup(str(place)))

    def _let_time_pass(self) -> None:
        self._pass_time(1_700)
        sweep(self._hf)

    def _pass_time(self, ms: int) -> None:
        self._notes.note(Time(self._clock.now_ms() + ms))
        self._clock.advance(ms)
