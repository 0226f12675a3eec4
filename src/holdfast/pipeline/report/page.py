"""The report as one self-contained HTML page."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from holdfast.pipeline.report.facts import ReportFacts
from holdfast.pipeline.report.plots import Series, plot, stacked, time_label
from holdfast.pipeline.report.style import STYLE

# A column: its heading, and the function that returns the cell of a row.
Column = tuple[str, Callable[[Mapping[str, Any]], str]]


def page(facts: ReportFacts, *, title: str, made_at: str, violations: int | None = None) -> str:
    """Return the page. `violations` is the number found by the last audit, or None without an audit."""
    span = f"{time_label(facts.start_ms, 0, is_full=True)} to {time_label(facts.end_ms, 0, is_full=True)} UTC"
    body = "".join(
        (
            f"<header><h1>{escape(title)}</h1><p>{span} · {facts.tenant_count:,} tenants · {facts.queue_count:,} queues"
            f" · steps of {duration(facts.step_ms)}</p></header>",
            _tiles(facts, violations),
            f'<section class="plots">{"".join(_plots(facts))}</section>',
            _section(
                "Errors", _errors(facts), "Errors that differ only in numbers, ids, hosts and quoted text are grouped."
            ),
            _section("Tenants and their neighbours", _tenants(facts), _ABOUT_NEIGHBOURS),
            _section("Queues", _queues(facts), f"Late: failed, or not completed within {duration(facts.promise_ms)}."),
            f"<footer>Made {escape(made_at)} by <code>holdfast pipeline report</code>. Percentiles have an error of at "
            "most one rank in ten thousand; counts are exact.</footer>",
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )


_ABOUT_NEIGHBOURS = (
    "Others waited: the median over time steps of the 95th percentile of the wait of other tenants’ first deliveries. "
    "“Busy” steps are those in which more than half of the arrivals were this tenant’s. If the wait is longer in busy "
    "steps than in others, the tenant is a noisy neighbour."
)


def _tiles(facts: ReportFacts, violations: int | None) -> str:
    totals = facts.totals
    ends = totals["succeeded"] + totals["failed"]
    tiles = [
        ("Arrived", number(totals["enqueued"]), size(totals["bytes_in"])),
        ("Completed", number(totals["succeeded"]), share(totals["succeeded"], ends) + " of ended messages"),
        ("Failed", number(totals["failed"]), f"{number(totals['retried'])} retried"),
        ("Redelivered", number(totals["again"]), f"{number(totals['expired'])} leases expired"),
        ("Wait p95", duration(totals["wait_p95_ms"]), f"p50 {duration(totals['wait_p50_ms'])}"),
        ("Work p95", duration(totals["work_p95_ms"]), f"p50 {duration(totals['work_p50_ms'])}"),
        ("Late", number(totals["late"]), f"promised within {duration(facts.promise_ms)}"),
        ("Violations", "–" if violations is None else number(violations), _audit(violations, totals["events"])),
    ]
    is_bad = {"Failed": totals["failed"], "Late": totals["late"], "Violations": violations}
    cells = "".join(
        f'<div class="tile{" bad" if is_bad.get(name) else ""}"><span>{name}</span><b>{value}</b>'
        f"<small>{below}</small></div>"
        for name, value, below in tiles
    )
    return f'<section class="tiles">{cells}</section>'


def _audit(violations: int | None, events: int) -> str:
    return "not audited" if violations is None else f"in {number(events)} events"


def _plots(facts: ReportFacts) -> list[str]:
    starts = [row["start_ms"] for row in facts.steps]

    def of(column: str) -> list[float | None]:
        return [row[column] for row in facts.steps]

    def draw(title: str, format: Callable[[float], str], *series: Series) -> str:
        return plot(title, starts, facts.step_ms, series, format, base=2 if format is size else 10)

    return [
        draw(
            "Arrivals and completions",
            number,
            Series("arrived", of("enqueued"), "c1"),
            Series("completed", of("succeeded"), "c2"),
            Series("failed", of("failed"), "c4"),
        ),
        draw(
            "Wait before the first delivery",
            duration,
            Series("p50", of("wait_p50_ms"), "c2"),
            Series("p95", of("wait_p95_ms"), "c3"),
            Series("p99", of("wait_p99_ms"), "c4"),
        ),
        draw(
            "Work on one attempt",
            duration,
            Series("p50", of("work_p50_ms"), "c2"),
            Series("p95", of("work_p95_ms"), "c3"),
            Series("p99", of("work_p99_ms"), "c4"),
        ),
        draw(
            "Retries, expired leases, redrives",
            number,
            Series("retried", of("retried"), "c3", is_bar=True),
            Series("expired", of("expired"), "c4", is_bar=True),
            Series("redriven", of("redriven"), "c5", is_bar=True),
        ),
        _claims_by_tenant(facts, starts),
        _fairness(facts),
        draw("Late or failed", number, Series("late", of("late"), "c4", is_bar=True)),
        draw(
            "Bytes",
            size,
            Series("in", of("bytes_in"), "c1"),
            Series("delivered", of("bytes_out"), "c2"),
        ),
    ]


def _claims_by_tenant(facts: ReportFacts, starts: Sequence[int]) -> str:
    claimed: dict[str, dict[int, int]] = {}
    for row in facts.shares:
        claimed.setdefault(row["tenant"], {})[row["start_ms"]] = row["claimed"]
    order = sorted(claimed, key=lambda tenant: (tenant == "others", -sum(claimed[tenant].values()), tenant))
    series = [
        Series(tenant, [claimed[tenant].get(start, 0) for start in starts], f"c{n % 8 + 1}")
        for n, tenant in enumerate(order[:8])
    ]
    if len(order) > 8:
        rest = [sum(claimed[tenant].get(start, 0) for tenant in order[8:]) for start in starts]
        series.append(Series("the rest", rest, "c0"))
    return stacked("Deliveries by tenant", starts, facts.step_ms, series, number)


def _fairness(facts: ReportFacts) -> str:
    starts = [start for start, _ in facts.fairness]
    values = [value for _, value in facts.fairness]
    if not starts:
        return (
            "<figure><figcaption>Fairness among waiting tenants</figcaption><p class=none>There was no time step in "
            "which several tenants were waiting.</p></figure>"
        )
    title = "Fairness among waiting tenants (1: all get the same)"
    return plot(title, starts, facts.step_ms, [Series("Jain’s index", values, "c5")], lambda value: f"{value:.2f}")


def _errors(facts: ReportFacts) -> str:
    return _table(
        facts.clusters,
        [
            ("error", lambda row: f"<code>{escape(row['cluster'])}</code>"),
            ("queue", lambda row: escape(f"{row['tenant']}/{row['queue']}")),
            ("failures", lambda row: number(row["failures"])),
            ("messages", lambda row: number(row["messages"])),
            ("first", lambda row: time_label(row["first_at"], 0, is_full=True)),
            ("last", lambda row: time_label(row["last_at"], 0, is_full=True)),
            ("example", lambda row: f"<small>{escape(row['sample_id'])}</small>"),
        ],
        "Nothing failed.",
    )


def _tenants(facts: ReportFacts) -> str:
    claims, arrivals = facts.totals["claimed"], facts.totals["enqueued"]
    shown = _table(
        facts.tenants,
        [
            ("tenant", lambda row: escape(row["tenant"])),
            ("queues", lambda row: number(row["queues"])),
            ("of arrivals", lambda row: share(row["enqueued"], arrivals)),
            ("of deliveries", lambda row: share(row["claimed"], claims)),
            ("wait p95", lambda row: duration(row["wait_p95_ms"])),
            ("others waited, busy", lambda row: duration(row["others_loud_ms"])),
            ("others waited, otherwise", lambda row: duration(row["others_quiet_ms"])),
            ("late", lambda row: number(row["late"])),
            ("bytes in", lambda row: size(row["bytes_in"])),
            ("bytes out", lambda row: size(row["bytes_out"])),
        ],
        "No tenants.",
    )
    return shown + _more(facts.tenant_count, len(facts.tenants))


def _queues(facts: ReportFacts) -> str:
    shown = _table(
        facts.queues,
        [
            ("queue", lambda row: escape(f"{row['tenant']}/{row['queue']}")),
            ("arrived", lambda row: number(row["enqueued"])),
            ("completed", lambda row: number(row["succeeded"])),
            ("failed", lambda row: number(row["failed"])),
            ("retried", lambda row: number(row["retried"])),
            ("expired", lambda row: number(row["expired"])),
            ("wait p50", lambda row: duration(row["wait_p50_ms"])),
            ("wait p95", lambda row: duration(row["wait_p95_ms"])),
            ("work p50", lambda row: duration(row["work_p50_ms"])),
            ("work p95", lambda row: duration(row["work_p95_ms"])),
            ("late", lambda row: number(row["late"])),
            ("bytes in", lambda row: size(row["bytes_in"])),
        ],
        "No queues.",
    )
    return shown + _more(facts.queue_count, len(facts.queues))


def _more(total: int, shown: int) -> str:
    return f"<p class=none>{total - shown:,} more are in the lake’s tables.</p>" if total > shown else ""


def _section(heading: str, content: str, about: str) -> str:
    return f"<section><h2>{escape(heading)}</h2><p class=about>{escape(about)}</p>{content}</section>"


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], empty: str) -> str:
    if not rows:
        return f"<p class=none>{escape(empty)}</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in columns)
    lines = "".join(f"<tr>{''.join(f'<td>{cell(row)}</td>' for _, cell in columns)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def number(value: float) -> str:
    """Format a count with three significant digits: `12.3k`."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= unit:
            return f"{value / (1e3 if name == 'k' else unit):.3g}{name}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.2g}"


def duration(ms: float | None) -> str:
    """Format a duration: `1.5 min`."""
    if ms is None:
        return "–"
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= unit_ms:
            return f"{ms / unit_ms:.3g} {unit}"
    return f"{ms:.3g} ms"


def size(value: float) -> str:
    """Format a number of bytes: `1.5 MiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} B"


def share(part: float, whole: float) -> str:
    """Format a share in per cent."""
    return f"{100 * part / whole:.3g} %" if whole else "–"
