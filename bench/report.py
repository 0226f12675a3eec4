"""Figures as a table: what was measured, beside what, and whether the goal was met; and tables of other shapes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    what: str
    value: str
    baseline: str
    baseline_value: str
    ratio: float
    goal: float
    lower_is_better: bool = False

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.goal if self.lower_is_better else self.ratio >= self.goal

    def row(self) -> str:
        sign = "≤" if self.lower_is_better else "≥"
        verdict = "met" if self.is_met else "missed"
        return (
            f"| {self.what} | {self.value} | {self.baseline}: {self.baseline_value} | {self.ratio:.2f} "
            f"| {sign} {self.goal:g} | {verdict} |"
        )


@dataclass(frozen=True)
class Table:
    """Measurements without goals, printed after the figures."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


HEAD = "| what | measured | beside | ratio | goal | |\n|---|---|---|---|---|---|"
