"""The audit's rules: each finds what is planted for it, and nothing else; a real journal breaks none."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.events import Event
from holdfast.model.ids import to_uuid
from holdfast.pipeline.audit.checks import check_against_store, check_events, check_rules, last_events, measure
from holdfast.pipeline.audit.rules import Rule
from holdfast.pipeline.audit.screen import find_suspects, find_unusual, hash_of_id
from holdfast.testing import ManualClock
from tests.pipeline.journal_made import frame_of, journal_of, make_traffic, store
from tests.seeds import run_seed

pytestmark = pytest.mark.slow

START_MS = 1_790_000_000_000


@dataclass(frozen=True)
class Told:
    """A journal event with any field as a test wants it."""

    seq: int
    event: str
    id: str
    at: int = START_MS
    shard: int = 0
    tenant: str = "acme"
    queue: str = "pay"
    attempt: int = 0
    version: int = 0
    priority: int = 100
    enqueued_at: int = START_MS
    claimed_at: int | None = None
    bytes: int = 3
    error: str | None = None
    reason: str | None = None
    correlation_id: str = "c"


def life(*events: str, id: int) -> list[Told]:
    """Return one message's events as a store writes them, a second apart."""
    told: list[Told] = []
    attempt, claimed_at = 0, None
    for number, event in enumerate(events):
        at = START_MS + 10_000 + id * 100_000 + 1_000 * number
        if event == "claimed":
            attempt, claimed_at = attempt + 1, at
        told.append(
            Told(
                seq=id * 100 + number,
                event=event,
                id=to_uuid((START_MS - 1_704_067_200_000 << 22) + id),
                at=at,
                attempt=attempt,
                version=attempt,
                enqueued_at=START_MS + 10_000 + id * 100_000,
                claimed_at=None if event == "enqueued" else claimed_at,
                reason="retries" if event == "failed" else None,
            )
        )
    return told


def changed(which: int, **fields: Any) -> Callable[[list[Told]], list[Told]]:
    return lambda told: [replace(each, **fields) if n == which else each for n, each in enumerate(told)]


def repeated(which: int) -> Callable[[list[Told]], list[Told]]:
    return lambda told: [*told[: which + 1], *told[which:]]


def as_is(told: list[Told]) -> list[Told]:
    return told


def _moved(told: list[Told]) -> list[Told]:
    here = [replace(told[0]), replace(told[1], reason="to acme/other")]
    return [*here, *(replace(each, queue="other", reason="from acme/pay") for each in told[2:])]


SUCCEEDS = ("enqueued", "claimed", "succeeded")
RETRIES = ("enqueued", "claimed", "retried", "claimed", "succeeded")

# A life, what is done to it, and the one rule that breaks.
PLANTED: list[tuple[Rule, tuple[str, ...], Callable[[list[Told]], list[Told]]]] = [
    (Rule.NAME, ("enqueued",), changed(0, queue="../etc")),
    (Rule.ID, ("enqueued",), changed(0, id="42")),
    (Rule.CHANGED, SUCCEEDS, changed(2, correlation_id="another")),
    (Rule.CHANGED, SUCCEEDS, changed(2, enqueued_at=START_MS + 1)),
    (Rule.UNKNOWN_EVENT, ("enqueued", "pondered"), as_is),
    (Rule.ENQUEUED_ONCE, ("enqueued", "claimed", "retried", "enqueued"), as_is),
    (Rule.ENQUEUED_ONCE, ("claimed", "succeeded"), as_is),
    (Rule.TRANSITION, ("enqueued", "redriven"), as_is),
    (Rule.DOUBLE_LEASE, ("enqueued", "claimed", "claimed", "succeeded"), as_is),
    (Rule.VERSION, RETRIES, lambda told: changed(4, version=1)(changed(3, version=1)(told))),
    (Rule.VERSION, SUCCEEDS, changed(2, version=7)),
    (Rule.STALE_ACCEPTED, ("enqueued", "claimed", "expired", "succeeded"), as_is),
    (Rule.CLAIMED_AT, SUCCEEDS, changed(2, claimed_at=START_MS)),
    (Rule.ATTEMPT, RETRIES, lambda told: changed(4, attempt=1)(changed(3, attempt=1)(told))),
    (Rule.BUDGET, ("enqueued", *("claimed", "retried") * 4), as_is),
    (Rule.AFTER_END, (*SUCCEEDS, "claimed"), as_is),
    (Rule.AFTER_END, ("enqueued", "removed", "claimed"), as_is),
    (Rule.REASON, ("enqueued", "claimed", "failed"), changed(2, reason=None)),
    (Rule.CROSSED, SUCCEEDS, changed(2, tenant="globex")),
    (Rule.DOUBLED_EVENT, ("enqueued", "claimed", "extended"), repeated(2)),
]

# Lives that break no rule.
SOUND: list[tuple[tuple[str, ...], Callable[[list[Told]], list[Told]]]] = [
    (RETRIES, as_is),
    (("enqueued", "claimed", "expired", "claimed", "failed", "redriven", "claimed", "succeeded"), as_is),
    (("enqueued", "claimed", "released", "claimed", "extended", "extended", "succeeded"), as_is),
    # A redrive gives a fresh budget.
    (("enqueued", *("claimed", "retried") * 3, "claimed", "failed", "redriven", *("claimed", "retried") * 3), as_is),
    (("enqueued", "moved", "moved", "claimed", "succeeded"), _moved),
    # A lease version may jump after a crash.
    (SUCCEEDS, lambda told: changed(2, version=9)(changed(1, version=9)(told))),
    # Its caller had left before it was told.
    (("enqueued", "claimed", "released"), changed(2, attempt=0, reason="unsent")),
    # `keep_succeeded`.
    ((*SUCCEEDS, "removed"), as_is),
    # Enqueued before the journal began.
    (("retried", "claimed", "succeeded"), lambda told: [replace(each, enqueued_at=START_MS - 1) for each in told]),
]


@pytest.mark.spec("9.8")
def test_each_planted_violation_is_found_by_its_rule_alone(spark: Any) -> None:
    events: list[Told] = life(*SUCCEEDS, id=0)
    planted: dict[str, Rule] = {}
    for number, (rule, told, harm) in enumerate(PLANTED, 1):
        harmed = harm(life(*told, id=number))
        events += harmed
        planted[harmed[0].id] = rule
    for number, (told, turn) in enumerate(SOUND, len(PLANTED) + 1):
        events += turn(life(*told, id=number))
    frame = frame_of(spark, events)

    with ExitStack() as kept:
        found = check_events(frame, measure(frame), max_retries=3, cleanup=kept).collect()

    assert {row.id: {each.rule for each in found if each.id == row.id} for row in found} == {
        id: {rule.value} for id, rule in planted.items()
    }
    assert {rule for rule, _, _ in PLANTED} == set(Rule) - {Rule.LOST, Rule.UNRECORDED, Rule.OTHER_STATE, Rule.STORE}
    assert all(row.detail for row in found)


FAILS = ("enqueued", "claimed", "failed")
PLAIN = [("enqueued",), ("enqueued", "claimed"), ("enqueued", "claimed", "released"), SUCCEEDS, FAILS, RETRIES]


def _twisted(told: list[Told]) -> Iterator[list[Told]]:
    """A life with one thing in it otherwise, each thing in turn."""
    for n, each in enumerate(told):
        yield [*told[:n], *told[n + 1 :]]
        yield repeated(n)(told)
        if n:
            yield changed(n, seq=told[n - 1].seq)(changed(n - 1, seq=each.seq)(told))
        for name, values in {
            "event": [*(str(kind) for kind in Event), "pondered"],
            "attempt": [each.attempt + 1, each.attempt - 1],
            "version": [each.version + 1, each.version - 1],
            "at": [each.at + 1],
            "claimed_at": [None, START_MS],
            "shard": [1],
            **{name: ["other"] for name in ("tenant", "queue", "correlation_id")},
            "enqueued_at": [START_MS + 1, START_MS - 1],
            "reason": [None, "", "unsent"],
        }.items():
            for value in values:
                yield changed(n, **{name: value})(told)


def test_the_looks_see_plain_lives_through_and_nothing_that_breaks_a_rule(spark: Any) -> None:
    plain = [life(*events, id=number) for number, events in enumerate(PLAIN)]
    twisted: list[list[Told]] = []
    for told in plain:
        for each in _twisted(told):
            number = len(plain) + len(twisted)
            id = to_uuid((START_MS - 1_704_067_200_000 << 22) + number)
            twisted.append([replace(event, id=id, seq=number * 100 + event.seq % 100) for event in each])
    frame = frame_of(spark, [event for told in [*plain, *twisted] for event in told]).cache()
    broken = {row.id for row in check_rules(frame, measure(frame)).select("id").distinct().collect()}
    ids = frame.select("id", hash_of_id().alias("suspect")).distinct()

    def named(found: Any) -> set[str]:
        return {row.id for row in ids.join(found, "suspect").select("id").collect()}

    first, second = named(find_unusual(frame)), named(find_suspects(frame))
    frame.unpersist()

    assert len(broken) > 100
    assert broken <= second
    assert broken <= first
    assert not {told[0].id for told in plain} & (first | second)


def test_a_message_that_changed_its_database_is_judged_in_the_order_of_time(spark: Any) -> None:
    told = _moved(life("enqueued", "moved", "moved", "claimed", "succeeded", id=1))
    # The database it went to numbers its events by itself, and has fewer.
    events = [*told[:2], *(replace(each, shard=1, seq=n) for n, each in enumerate(told[2:]))]
    events[2] = replace(events[2], at=events[1].at)
    frame = frame_of(spark, events)
    with ExitStack() as kept:
        assert check_events(frame, measure(frame), cleanup=kept).collect() == []
    back = frame_of(spark, [replace(each, version=0) if each.event == "claimed" else each for each in events])
    with ExitStack() as kept:
        assert {row.rule for row in check_events(back, measure(back), cleanup=kept).collect()} == {"version"}


@pytest.mark.spec("9.8")
def test_a_store_s_own_journal_breaks_no_rule_and_agrees_with_what_it_holds(spark: Any, tmp_path: Path) -> None:
    clock = ManualClock()
    with store(tmp_path / "store", clock) as hf:
        make_traffic(hf, clock, random.Random(run_seed()))
        events = journal_of(hf)
        held = [
            (info.id, tenant, each.queue, info.state.value, datetime.fromtimestamp(info.enqueued_at / 1_000, UTC))
            for tenant in ("acme", "globex", "initech")
            for each in hf.queues(tenant)
            for info in hf.queue(each.queue, tenant=tenant).list(limit=1_000)
        ]
    frame = frame_of(spark, events)
    extent = measure(frame)
    columns = "id string, tenant string, queue string, state string, enqueued_at timestamp"
    snapshot = spark.createDataFrame(held, columns)

    assert extent.events == len(events)
    assert {str(event.event) for event in events} == {
        *("enqueued", "claimed", "succeeded", "retried", "failed", "expired", "released", "extended", "redriven"),
        *("removed", "moved"),
    }
    with ExitStack() as kept:
        assert check_events(frame, extent, max_retries=2, cleanup=kept).collect() == []
    words = last_events(frame, extent)
    assert check_against_store(words, snapshot, extent).collect() == []

    # One that was enqueued before the journal's first event need not stand there.
    began = datetime.fromtimestamp(extent.start_ms / 1_000, UTC)
    old = (to_uuid(2), "acme", "pay", "ready", began - timedelta(days=8))
    stolen, other = held[0], held[1]
    strange = (to_uuid(1), "acme", "pay", "ready", began + timedelta(seconds=1))
    tampered = [strange, old, (*other[:3], "succeeded", other[4]), *held[2:]]
    found = check_against_store(words, spark.createDataFrame(tampered, snapshot.schema), extent).collect()
    assert {(row.rule, row.id) for row in found} == {
        ("lost", stolen[0]),
        ("unrecorded", strange[0]),
        ("other-state", other[0]),
    }
