"""The table of docs/verify.md: each kind of damage, and what each store reports for it."""

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[3] / "docs" / "verify.md"
STORES = ("embedded", "object store", "PostgreSQL")

_NAME = re.compile(r"`([a-z-]+)`")


class Cell(NamedTuple):
    """The findings of one store for a kind of damage, or the reason why it cannot find it."""

    findings: tuple[str, ...]
    reason: str


def read_table() -> dict[str, dict[str, Cell]]:
    """Return each kind's cells by the name of the store."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    table: dict[str, dict[str, Cell]] = {}
    for kind, _, *cells in rows:
        name = kind.removeprefix("| ").strip("`")
        assert name not in table, f"{name} is there twice"
        assert len(cells) == len(STORES), f"{name} has {len(cells)} stores"
        table[name] = dict(zip(STORES, (_cell(cell.removesuffix(" |")) for cell in cells), strict=True))
    return table


def _cell(text: str) -> Cell:
    if re.fullmatch(r"`[a-z-]+`( or `[a-z-]+`)*", text):
        return Cell(tuple(_NAME.findall(text)), "")
    return Cell((), text)
