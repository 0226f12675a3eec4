"""The tests that prove each line of docs/specification.md: from the marks on tests to the table on the page.

`python -m tests.specification` writes the table. A test is marked with `@pytest.mark.spec("2.4", "2.5")`, and a law of
`holdfast.testing` with `@proves("2.4")`.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "specification.md"
LAWS = ROOT / "src" / "holdfast" / "testing" / "laws"
MARKS = ("pytest.mark.spec", "proves")

_HEADING = re.compile(r"^### (\d+\.\d+) (.+)$", re.MULTILINE)
_TABLE = "| line | test |\n|---|---|\n"
_NOT_BUILT = "**Not built yet.**"


class Requirement(NamedTuple):
    number: str
    title: str
    text: str

    @property
    def is_built(self) -> bool:
        """Return whether at least a part of it is built."""
        return _NOT_BUILT not in self.text


class Mark(msgspec.Struct, frozen=True, order=True):
    """A line of the specification, and a test that proves it: the file that defines it, and its name."""

    line: str
    path: str
    test: str


def read_requirements() -> dict[str, Requirement]:
    """Return the numbered lines of the page, in its order."""
    parts = _HEADING.split(PAGE.read_text("utf-8").partition("\n## Tests\n")[0])[1:]
    found = [Requirement(*parts[at : at + 3]) for at in range(0, len(parts), 3)]
    numbers = [each.number for each in found]
    assert len(set(numbers)) == len(numbers), "a number is used twice"
    return dict(zip(numbers, found, strict=True))


def find_marks() -> set[Mark]:
    """Return the marks in the source of the tests and the laws."""
    paths = [*(ROOT / "tests").rglob("test_*.py"), *LAWS.rglob("*.py")]
    return {mark for path in paths for mark in _marks_in(path)}


def _marks_in(path: Path) -> Iterator[Mark]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for each in node.decorator_list:
            if isinstance(each, ast.Call) and ast.unparse(each.func) in MARKS:
                for line in each.args:
                    yield Mark(ast.literal_eval(line), str(path.relative_to(ROOT)), node.name)


def number_key(line: str) -> tuple[int, ...]:
    """Return the key by which lines are ordered, so that 2.10 follows 2.9."""
    return tuple(int(part) for part in line.split("."))


def make_table(marks: set[Mark]) -> str:
    """Return the rows for these marks, by line, file and test."""
    rows = sorted(marks, key=lambda mark: (number_key(mark.line), mark.path, mark.test))
    return _TABLE + "".join(f"| {each.line} | [`{each.test}`](../{each.path}) |\n" for each in rows)


def read_table() -> str:
    """Return the table that is on the page."""
    _, head, rows = PAGE.read_text("utf-8").partition(_TABLE)
    return head + rows


def write_table() -> None:
    """Put the table for the present marks on the page."""
    text, _, _ = PAGE.read_text("utf-8").partition(_TABLE)
    PAGE.write_text(text + make_table(find_marks()), "utf-8")


class _Collector:
    """A pytest plugin that writes the marks of all collected tests into a file."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        marks = {
            Mark(line, str(self._file_of(item).relative_to(ROOT)), item.originalname)
            for item in session.items
            if isinstance(item, pytest.Function)
            for mark in item.iter_markers("spec")
            for line in mark.args
        }
        self._target.write_bytes(msgspec.json.encode(sorted(marks)))

    def _file_of(self, item: pytest.Function) -> Path:
        """Return the file that defines the test, which for a law is not the one that collects it."""
        return Path(str(sys.modules[item.function.__module__].__file__)).resolve()


def main() -> int:
    """Write the table, or write the marks that pytest collects into a file."""
    parser = argparse.ArgumentParser(prog="python -m tests.specification", description="Write the table of the page.")
    parser.add_argument("--collected", metavar="FILE", help="write the marks of all collected tests into FILE instead")
    target = parser.parse_args().collected
    if target is None:
        write_table()
        return 0
    options = ["--collect-only", "-qq", "-m", "", "-p", "no:cacheprovider"]
    return int(pytest.main(options, plugins=[_Collector(Path(target))]))


if __name__ == "__main__":
    sys.exit(main())
