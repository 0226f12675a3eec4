"""docs/specification.md has every requirement, and a test for each that is built."""

import subprocess
import sys
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from tests.specification import ROOT, Mark, find_marks, make_table, number_key, read_requirements, read_table


def test_the_table_on_the_page_is_that_of_the_marks() -> None:
    assert read_table() == make_table(find_marks()), "run: python -m tests.specification"


def test_every_requirement_that_is_built_has_a_test_and_no_other_has() -> None:
    proved = {mark.line for mark in find_marks()}
    requirements = read_requirements()

    assert [each.number for each in requirements.values() if each.is_built and each.number not in proved] == []
    assert [line for line in proved if line not in requirements or not requirements[line].is_built] == []


def test_the_numbers_have_no_gap_and_are_in_order() -> None:
    numbers = [number_key(each) for each in read_requirements()]

    assert numbers == sorted(numbers)
    for section, lines in groupby(numbers, key=lambda number: number[0]):
        within = [line for _, line in lines]
        assert within == list(range(1, len(within) + 1)), section
    assert [section for section, _ in groupby(numbers, key=lambda number: number[0])] == list(range(1, 11))


def test_every_requirement_says_something() -> None:
    assert [each.number for each in read_requirements().values() if len(each.text.split()) < 5] == []


@pytest.mark.slow
def test_the_marked_tests_are_those_that_pytest_collects(tmp_path: Path) -> None:
    target = tmp_path / "marks.json"
    finished = subprocess.run(
        [sys.executable, "-m", "tests.specification", "--collected", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )

    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    assert set(msgspec.json.decode(target.read_bytes(), type=list[Mark])) == find_marks()
