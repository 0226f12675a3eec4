"""The dashboard and the alert rules ask for nothing that a server does not export."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.model.answers import Access, HotQueue
from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.telemetry.declared import FAMILIES
from holdfast.telemetry.exposition import MetricFamily, MetricKind
from holdfast.telemetry.figures import SYNC_BOUNDS, ConnectionFigures, FamilyFigures, Figures, Histogram
from holdfast.telemetry.metrics import OK, Metrics
from tests.telemetry.scraping import FixedSource, names_in, samples, stats

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "holdfast.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
SCRAPES = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
BLACKBOX = yaml.safe_load((DEPLOY / "prometheus" / "blackbox.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]

# Metrics of Prometheus itself, of the blackbox exporter, and of the client library's process collector.
FOREIGN = {"up": (), "probe_success": (), "process_resident_memory_bytes": ()}
# What Prometheus adds to every series it scrapes.
SCRAPED = {"instance", "job"}

FUNCTIONS = {
    *("rate", "increase", "delta", "deriv", "predict_linear", "histogram_quantile", "absent", "scalar", "sort_desc"),
    *("sum", "min", "max", "topk", "label_values"),
}
WORDS = {"by", "and", "or", "unless"}


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", ())


def expressions() -> list[tuple[str, str]]:
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel.get("targets", ())]
    found += [(each["name"], each["definition"]) for each in DASHBOARD["templating"]["list"] if "definition" in each]
    return found + [(rule["alert"], rule["expr"]) for rule in RULES]


def series() -> dict[str, MetricFamily]:
    """Every name that can be asked for, histograms by their parts."""
    known = {}
    for family in FAMILIES:
        suffixes = ("_bucket", "_sum", "_count") if family.kind is MetricKind.HISTOGRAM else ("",)
        known.update({family.name + suffix: family for suffix in suffixes})
    return known


def labels_of(name: str, family: MetricFamily) -> set[str]:
    return {*family.labels, *SCRAPED, *({"le"} if name.endswith("_bucket") else ())}


async def everything() -> bytes:
    """A rendering in which every metric has something to show."""
    ref = QueueRef("acme", "a")
    family = FamilyFigures(
        keys=1,
        live_bytes=1,
        files_bytes=1,
        memtable_bytes=1,
        pending_compaction_bytes=1,
        level0_files=1,
        block_cache_bytes=1,
    )
    disk = {"free_bytes": 1, "wal_free_bytes": 1, "refusals": 1, "stops": 1}
    log = {"writes": 1, "checkpoints": 1, "unwritten_bytes": 1, "legacy_left": 1}
    hot = [HotQueue(family="m", access=Access.WRITE, tenant="acme", queue="a", share=1.0)]
    connections = ConnectionFigures(limit=8, in_use=1, waiting=0, lock_timeouts=0, failures=0)
    figures = Figures(
        **disk,
        **log,
        clock_skew_s=0.0,
        syncs=Histogram(SYNC_BOUNDS),
        families={"m": family},
        hot=hot,
        connections=connections,
    )

    class Source(FixedSource):
        async def take_tallies(self) -> dict[Any, Any]:
            return {ref: {Event.ENQUEUED: 1}}

    metrics = Metrics(Source({ref: stats()}, figures))
    metrics.request("enqueue", ref, OK, 0.001)
    metrics.decided(ref, "write", "admitted")
    metrics.waited(ref, "write", 1)
    metrics.shares_limits = lambda: True
    metrics.turns = RequestTurns(lambda tenant: 1)
    metrics.door_processes = {1: 0.5}
    metrics.store_processes = {2: 0.5}
    return await metrics.render()


async def test_what_is_declared_is_what_is_exported() -> None:
    text = await everything()
    exported = {name for name in names_in(text) if name.startswith("holdfast_")}
    assert exported == set(series())
    for name, labels in samples(text):
        if name in series():
            assert {label for label, _ in labels} == labels_of(name, series()[name]) - SCRAPED


async def test_foreign_names_are_exported_too() -> None:
    assert set(FOREIGN) - {"up", "probe_success"} <= set(names_in(await everything()))


@pytest.mark.spec("10.9")
@pytest.mark.parametrize(("title", "expression"), expressions())
def test_an_expression_is_well_formed_and_asks_for_what_there_is(title: str, expression: str) -> None:
    check_brackets(expression)
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    matchers = dict(selectors(bare))
    known = series()
    for name, labels in matchers.items():
        if name not in FOREIGN:
            assert name in known, f"{title} asks for {name}, which no server exports"
            assert labels <= labels_of(name, known[name])
    for asked in re.findall(r"\bby \(([^)]*)\)", bare):
        every = set().union(*(labels_of(name, known[name]) for name in matchers if name in known))
        assert {label.strip() for label in asked.split(",")} <= every
    for function, name in re.findall(r"\b(rate|increase|deriv|delta|predict_linear)\(([a-z_0-9]+)", bare):
        is_counter = known[name].kind is not MetricKind.GAUGE
        assert is_counter == (function in ("rate", "increase")), f"{title}: {function} of {name}"
    for name in re.findall(r"histogram_quantile\([^a-z]*(?:sum by \([^)]*\) \()?rate\(([a-z_]+)", bare):
        assert name.endswith("_bucket")


def selectors(bare: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics of an expression, each with the labels it is chosen by."""
    without_groups = re.sub(r"\b(?:by|on) \([^)]*\)", "", bare)
    if labelled := re.fullmatch(r"label_values\((.*), ([a-z_]+)\)", without_groups):
        without_groups = labelled[1]
    for name, chosen in re.findall(
        r"(?<![\w$\"])([a-zA-Z_][a-zA-Z0-9_]*)\s*(\{[^}]*\})?", _outside_braces(without_groups)
    ):
        if name not in FUNCTIONS | WORDS:
            yield name, set(re.findall(r"([a-zA-Z_]+)\s*(?:=~|!~|!=|=)", chosen))


def _outside_braces(text: str) -> str:
    """Durations, and the variables of Grafana, are no names."""
    return re.sub(r"\[[^\]]*\]", "", text)


def check_brackets(expression: str) -> None:
    pairs = {")": "(", "]": "[", "}": "{"}
    expected: list[str] = []
    for each in re.sub(r'"(?:[^"\\]|\\.)*"', "", expression):
        if each in "([{":
            expected.append(each)
        elif each in pairs:
            assert expected
            assert expected.pop() == pairs[each]
    assert not expected
    assert expression.count('"') % 2 == 0


def test_the_check_itself_finds_what_is_wrong() -> None:
    assert dict(selectors('sum by (a) (rate(x_total{b="",c=~""}[5m])) / y')) == {"x_total": {"b", "c"}, "y": set()}
    with pytest.raises(AssertionError):
        check_brackets("sum(rate(x[5m])")
    with pytest.raises(AssertionError):
        test_an_expression_is_well_formed_and_asks_for_what_there_is("t", "holdfast_made_up_total")
    with pytest.raises(AssertionError):
        test_an_expression_is_well_formed_and_asks_for_what_there_is("t", "rate(holdfast_queue_bytes[5m])")
    with pytest.raises(AssertionError):
        test_an_expression_is_well_formed_and_asks_for_what_there_is("t", 'holdfast_queue_bytes{state="ready"}')


# --- The dashboard -------------------------------------------------------------------------------------------------


@pytest.mark.spec("10.9")
def test_the_dashboard_has_its_rows_and_variables() -> None:
    assert [panel["title"] for panel in panels() if panel["type"] == "row"] == [
        *("Overview", "Tenants and queues", "Latency", "Leases and retries", "Limits and fairness", "Store")
    ]
    names = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "tenant", "queue", "operation"]
    used = set(re.findall(r"\$(\w+)", json.dumps([panel.get("targets") for panel in panels()])))
    assert used - {"__rate_interval"} <= set(names)


def test_every_panel_says_what_it_shows_and_none_covers_another() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith(".")


# --- The alerts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Holdfast[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "action"}
    for text in rule["annotations"].values():
        assert len(text) > 10
        assert text.count("{{") == text.count("}}")


def test_the_alerts_cover_what_goes_wrong() -> None:
    assert {rule["alert"] for rule in RULES} >= {
        "HoldfastDown",
        "HoldfastMetricsNotAllowed",
        "HoldfastStoreStopped",
        "HoldfastEnqueuesRefused",
        "HoldfastOldestAgeGrows",
        "HoldfastFailedGrows",
        "HoldfastExpiriesHigh",
        "HoldfastTenantLimited",
        "HoldfastSyncSlow",
        "HoldfastDiskNearlyFull",
    }


def rule(name: str) -> str:
    [expression] = [each["expr"] for each in RULES if each["alert"] == name]
    return " ".join(expression.split())


def test_a_server_that_is_down_and_one_that_refuses_the_scrape_raise_different_alerts() -> None:
    failed, healthy = 'up{job="holdfast"} == 0', 'probe_success{job="holdfast-health"} == 1'

    assert rule("HoldfastMetricsNotAllowed") == f"{failed} and on (instance) {healthy}"
    assert rule("HoldfastDown") == f'({failed} unless on (instance) {healthy}) or absent(up{{job="holdfast"}})'


def test_the_scrape_configuration_has_the_jobs_that_the_alerts_ask_for() -> None:
    jobs = {job["job_name"]: job for job in SCRAPES["scrape_configs"]}
    asked = {name for each in RULES for name in re.findall(r'job="([^"]*)"', each["expr"])}
    assert set(jobs) == asked
    assert SCRAPES["rule_files"] == ["alerts.yaml"]
    scrape, health = jobs["holdfast"], jobs["holdfast-health"]
    assert scrape["authorization"]["type"] == "Bearer"
    assert scrape["static_configs"] == health["static_configs"]
    assert health["params"]["module"] == list(BLACKBOX["modules"])
    # The alerts match the two jobs by their instance, which is the scraped address by default.
    assert {"source_labels": ["__address__"], "target_label": "instance"} in health["relabel_configs"]
    assert any(each.get("replacement") == "http://$1/healthz" for each in health["relabel_configs"])


# --- The page about them -------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()


def test_the_page_lists_every_metric_as_it_is_declared() -> None:
    rows = re.findall(r"^\| `(holdfast_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    assert rows == [
        (family.name, family.kind.value, ", ".join(f"`{label}`" for label in family.labels) or "–", family.help)
        for family in FAMILIES
    ]


def test_the_page_names_every_alert() -> None:
    assert set(re.findall(r"`(Holdfast[A-Z]\w+)`", PAGE)) == {rule["alert"] for rule in RULES}
