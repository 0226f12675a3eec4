"""Plots as SVG text. Colours are CSS variables, so that a plot suits both light and dark pages."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 12, 26
_TICKS = 4

Format = Callable[[float], str]


class Series(NamedTuple):
    """One line or set of bars of a plot."""

    name: str
    # One value per time step. None if nothing was measured.
    values: Sequence[float | None]
    colour: str
    is_bar: bool = False


def plot(
    title: str, starts_ms: Sequence[int], step_ms: int, series: Sequence[Series], format: Format, *, base: int = 10
) -> str:
    """Draw lines, and bars behind them, over time steps. `base` determines which numbers on the axis are round."""
    top = _ceiling(max((v for each in series for v in each.values if v is not None), default=0), base)
    scale = _Scale(starts_ms, step_ms, top)
    parts = [*_grid(scale, top, format)]
    bars = [each for each in series if each.is_bar]
    for number, each in enumerate(bars):
        parts += _bars(scale, each, number, len(bars))
    parts += [_line(scale, each) for each in series if not each.is_bar]
    parts += _hover(scale, series, format)
    return _framed(title, parts, series)


def stacked(title: str, starts_ms: Sequence[int], step_ms: int, series: Sequence[Series], format: Format) -> str:
    """Draw stacked areas, with the first series at the bottom."""
    totals = [sum((each.values[n] or 0) for each in series) for n in range(len(starts_ms))]
    top = _ceiling(max(totals, default=0))
    scale = _Scale(starts_ms, step_ms, top)
    parts = [*_grid(scale, top, format)]
    below = [0.0] * len(starts_ms)
    for each in series:
        above = [low + (value or 0) for low, value in zip(below, each.values, strict=True)]
        outline = [f"{scale.x(n):.1f},{scale.y(v):.1f}" for n, v in enumerate(above)]
        back = [f"{scale.x(n):.1f},{scale.y(v):.1f}" for n, v in reversed(list(enumerate(below)))]
        parts.append(f'<polygon points="{" ".join(outline + back)}" fill="var(--{each.colour})" fill-opacity=".75"/>')
        below = above
    parts += _hover(scale, series, format)
    return _framed(title, parts, series)


class _Scale:
    def __init__(self, starts_ms: Sequence[int], step_ms: int, top: float) -> None:
        self.starts_ms = starts_ms
        self.step_ms = step_ms
        self._first = starts_ms[0] if starts_ms else 0
        self._span = max((starts_ms[-1] - self._first) if starts_ms else 0, step_ms)
        self._top = top

    def x(self, number: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (self.starts_ms[number] - self._first) / self._span

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self._top

    @property
    def step_width(self) -> float:
        return (WIDTH - LEFT - RIGHT) * self.step_ms / self._span


def _framed(title: str, parts: Sequence[str], series: Sequence[Series]) -> str:
    legend = "".join(
        f'<span class="key"><i style="background:var(--{each.colour})"></i>{escape(each.name)}</span>'
        for each in series
    )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg><div class="legend">{legend}</div></figure>'
    )


def _grid(scale: _Scale, top: float, format: Format) -> list[str]:
    parts = []
    for number in range(_TICKS + 1):
        value = top * number / _TICKS
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(format(value))}</text>')
    shown = _label_positions(len(scale.starts_ms))
    for number in shown:
        at = scale.starts_ms[number]
        anchor = "start" if number == 0 else "end" if number == len(scale.starts_ms) - 1 else "middle"
        parts.append(
            f'<text x="{scale.x(number):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">'
            f"{time_label(at, scale.step_ms)}</text>"
        )
    return parts


def _label_positions(steps: int) -> list[int]:
    if steps < 2:
        return list(range(steps))
    return sorted({0, steps - 1, (steps - 1) // 3, 2 * (steps - 1) // 3} if steps > 5 else {0, steps - 1})


def _line(scale: _Scale, series: Series) -> str:
    """Draw a line. A step without a value breaks it, and a value between two such steps is drawn as a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(series.values):
        is_next = number == 0 or scale.starts_ms[number] - scale.starts_ms[number - 1] <= scale.step_ms
        if value is None or not is_next:
            runs.append([])
        if value is not None:
            runs[-1].append((scale.x(number), scale.y(value)))
    parts = []
    for run in filter(None, runs):
        if len(run) == 1:
            parts.append(f'<circle cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="2" fill="var(--{series.colour})"/>')
        else:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            parts.append(f'<polyline points="{points}" fill="none" stroke="var(--{series.colour})" stroke-width="2"/>')
    return "".join(parts)


def _bars(scale: _Scale, series: Series, number: int, of: int) -> list[str]:
    whole = max(1.0, min(scale.step_width * 0.8, 18))
    width = max(0.8, whole / of)
    parts = []
    for step, value in enumerate(series.values):
        if value:
            x = min(scale.x(step) - whole / 2 + number * width, WIDTH - RIGHT - width)
            y = scale.y(value)
            parts.append(
                f'<rect x="{max(LEFT, x):.1f}" y="{y:.1f}" width="{width:.1f}" '
                f'height="{max(0.5, HEIGHT - BOTTOM - y):.1f}" fill="var(--{series.colour})"/>'
            )
    return parts


def _hover(scale: _Scale, series: Sequence[Series], format: Format) -> list[str]:
    """Draw a transparent strip over each step, with a tooltip of its values."""
    parts = []
    width = max(2.0, scale.step_width)
    for number, at in enumerate(scale.starts_ms):
        said = [time_label(at, scale.step_ms, is_full=True)]
        said += [f"{each.name}: {'–' if (v := each.values[number]) is None else format(v)}" for each in series]
        x = max(LEFT, scale.x(number) - width / 2)
        parts.append(
            f'<rect class="strip" x="{x:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(chr(10).join(said))}</title></rect>'
        )
    return parts


def _ceiling(highest: float, base: int = 10) -> float:
    """Return the smallest round number that is not below `highest`."""
    if base == 2:
        return float(1 << max(2, (int(highest) - 1).bit_length()))
    if highest <= 0:
        return 1
    power = 1.0
    while power * 10 <= highest:
        power *= 10
    while power > highest:
        power /= 10
    return next(power * each for each in (1, 2, 4, 5, 8, 10) if power * each >= highest)


def time_label(at_ms: int, step_ms: int, *, is_full: bool = False) -> str:
    """Format a time for the axis, or in full with the date and the time."""
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    if is_full:
        return at.strftime("%Y-%m-%d %H:%M:%S")
    if step_ms >= 43_200_000:
        return at.strftime("%d %b")
    return at.strftime("%H:%M:%S" if step_ms < 60_000 else "%d %b %H:%M" if step_ms >= 1_800_000 else "%H:%M")
