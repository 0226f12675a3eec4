"""`report`: figures that add up to the events, bills that never change, and a page that needs nothing else."""

import random
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from holdfast.pipeline.jobs.archive import archive
from holdfast.pipeline.jobs.error_patterns import clusters
from holdfast.pipeline.jobs.journals import OpenedJournal
from holdfast.pipeline.jobs.report import bill, report
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import BILL_DAY, MINUTE
from holdfast.pipeline.report.facts import fairness_by_step, step_for
from holdfast.pipeline.report.figures import fairness
from holdfast.pipeline.report.plots import Series, plot
from holdfast.testing import ManualClock
from tests.pipeline.journal_made import journal_of, make_traffic, store
from tests.seeds import run_seed

DAY_MS = 86_400_000


class Closed(HTMLParser):
    """Fails on a tag that was not closed, and collects what would be fetched."""

    VOID = frozenset({"meta", "br", "line", "rect", "circle", "polyline", "polygon"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID or (tag == "rect" and ("class", "strip") in attrs):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.spec("9.7")
@pytest.mark.slow
def test_the_tables_add_up_to_the_events_and_the_page_shows_them(spark: Any, tmp_path: Path) -> None:
    clock, lake = ManualClock(), Lake(str(tmp_path / "lake"))
    with store(tmp_path / "store", clock) as hf:
        make_traffic(hf, clock, random.Random(run_seed()))
        hf.queue("mail", tenant="acme").enqueue(b"x")
        hf.queue("mail", tenant="acme").claim()[0].nack("<script>alert(7)</script> of job 17", final=True)
        events = journal_of(hf)
        archive(spark, OpenedJournal(hf), lake)

        done = report(spark, lake, page_at=tmp_path / "report.html", now_ms=clock.now_ms())
        assert done.is_sound
        _check_minutes(lake.read(spark, MINUTE).collect(), events)
        _check_bills(lake.read(spark, BILL_DAY).collect(), events, clock.now_ms())
        _check_page((tmp_path / "report.html").read_text())

        # A second run bills nothing again; a day that was billed changes by an adjustment.
        assert bill(spark, lake, clock.now_ms()) == 0
        assert bill(spark, lake, clock.now_ms() + 2 * DAY_MS) > 0
        hf.queue("mail", tenant="acme").enqueue(b"late")
        archive(spark, OpenedJournal(hf), lake)
        assert bill(spark, lake, clock.now_ms() + 2 * DAY_MS) == 1
        [extra] = [row for row in lake.read(spark, BILL_DAY).collect() if row.kind == "adjustment"]
        assert (extra.tenant, extra.queue, extra.messages, extra.deliveries) == ("acme", "mail", 1, 0)


def _check_minutes(rows: list[Any], events: list[Any]) -> None:
    expected = Counter((each.tenant, each.queue, each.at // 60_000, str(each.event)) for each in events)
    found = Counter[Any]()
    for row in rows:
        for event in {str(each.event) for each in events}:
            found[row.tenant, row.queue, int(row.minute.timestamp()) // 60, event] += row[event]
    assert +found == expected
    waits = {}
    for each in events:
        if each.event == "claimed" and each.attempt == 1:
            waits.setdefault((each.tenant, each.queue, each.at // 60_000), []).append(each.at - each.enqueued_at)
    highest = {(row.tenant, row.queue, int(row.minute.timestamp()) // 60): row.wait_max_ms for row in rows}
    assert {key: max(each) for key, each in waits.items()} == {k: v for k, v in highest.items() if v is not None}


def _check_bills(rows: list[Any], events: list[Any], now_ms: int) -> None:
    today = now_ms // DAY_MS
    expected = Counter[Any]()
    for each in events:
        if each.at // DAY_MS < today and each.event == "enqueued":
            expected[each.at // DAY_MS, each.tenant, each.queue] += each.bytes
    found = {((row.date.toordinal() - 719_163), row.tenant, row.queue): row.bytes_in for row in rows if row.messages}
    assert found == dict(expected)
    assert {row.kind for row in rows} == {"bill"}


def _check_page(text: str) -> None:
    parser = Closed()
    parser.feed(text)
    assert parser.open == []
    assert parser.fetched == []
    assert "url(" not in text
    assert parser.tags["script"] == 0
    assert parser.tags["svg"] >= 7
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text
    assert "&lt;script&gt;alert(&lt;n&gt;)&lt;/script&gt; of job &lt;n&gt;" in text
    assert "TimeoutError: no answer from &lt;host&gt; after &lt;n&gt; s" in text
    for tenant in ("acme", "globex", "initech"):
        assert re.search(rf"<td>{tenant}</td>", text)


@pytest.mark.spec("9.7")
@pytest.mark.slow
def test_errors_that_differ_in_their_particulars_are_one_cluster(spark: Any) -> None:
    said = [
        "KeyError: 'user-17' in /srv/app/jobs/mail.py line 20",
        "KeyError: 'user-4' in /srv/app/jobs/pay.py line 31\nTraceback: more",
        "HTTP 503 from https://api.example.com/v1/x?id=9 at 2026-01-02T03:04:05Z",
        "HTTP 503 from http://10.0.0.7:80/ at 2026-01-02 03:04:06.123+01:00",
        None,
    ]
    rows = [("t", "q", f"id{n}", error, "ttl" if error is None else "retries", n) for n, error in enumerate(said)]
    schema = "tenant string, queue string, id string, error string, reason string, at long"

    found = clusters(spark.createDataFrame(rows, schema)).collect()

    assert [(row.cluster, row.failures, row.sample_id) for row in found] == [
        ("HTTP <n> from <url> at <time>", 2, "id3"),
        ("KeyError: '…' in <path> line <n>", 2, "id1"),
        ("(ttl)", 1, "id4"),
    ]


@pytest.mark.spec("9.7")
def test_fairness_is_judged_among_tenants_that_are_kept_waiting() -> None:
    assert fairness([5, 5, 5]) == 1
    assert fairness([9, 0, 0]) == pytest.approx(1 / 3)

    def step(start: int, **tenants: tuple[int, int]) -> list[dict[str, Any]]:
        return [
            {"tenant": name, "start_ms": start, "enqueued": came, "claimed": begun, "begun": begun}
            for name, (came, begun) in tenants.items()
        ]

    # c has little and gets all of it: whatever the others get, it was not held back.
    assert fairness_by_step(step(0, a=(100, 10), b=(100, 10), c=(1, 1))) == [(0, 1.0)]
    assert fairness_by_step([*step(0, a=(100, 20), b=(100, 0)), *step(1, a=(0, 80), b=(0, 100))]) == [(0, 0.5)]


@pytest.mark.parametrize("steps", [0, 1, 2, 50])
def test_a_plot_of_any_length_stays_within_its_frame(steps: int) -> None:
    values = [None if n % 7 == 3 else n**2 for n in range(steps)]
    text = plot(
        "t", [n * 1_000 for n in range(steps)], 1_000, [Series("a", values, "c1"), Series("b", values, "c2", True)], str
    )
    numbers = re.findall(r'(?:x|cx|x1|x2|y|cy)="(-?[\d.]+)"', text)
    assert all(-1 <= float(each) <= 560 for each in numbers)
    for points in re.findall(r'points="([^"]+)"', text):
        assert all(0 <= float(x) <= 560 and 0 <= float(y) <= 240 for x, y in (p.split(",") for p in points.split()))


def test_a_step_is_the_shortest_that_a_plot_has_room_for() -> None:
    assert step_for(0) == 1_000
    assert step_for(10 * 60_000) == 10_000
    assert step_for(30 * DAY_MS) == 43_200_000
    assert step_for(10_000 * DAY_MS) == 604_800_000
