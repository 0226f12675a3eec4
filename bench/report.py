"""Figures as a table: what was measured, beside what, and whether the goal was met."""

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


HEAD = "| what | measured | beside | ratio | goal | |\n|---|---|---|---|---|---|"
