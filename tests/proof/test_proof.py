"""The proof says how far it is, keeps what it found part by part, and makes one page of it."""

from pathlib import Path

import pytest

from tests.machinery.outcomes import KEPT_VIOLATIONS, PartOutcome, Progress
from tests.proof import __main__ as command
from tests.proof import report
from tests.proof.parts import PARTS, Part


def counting(total: int, *, seed: int, progress: Progress) -> PartOutcome:
    outcome = PartOutcome(name="", unit="steps", counts={})
    for number in range(total):
        outcome.done += 1
        outcome.add_counts({"acked": 2})
        progress(outcome.done, total)
        if seed == number:
            outcome.violate(f"step {number} of seed {seed}")
    return outcome


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Part]:
    own = {"one": Part("the first", 10, counting), "two": Part("the second", 1_000, counting)}
    monkeypatch.setattr(command, "PARTS", own)
    monkeypatch.setattr(report, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(command, "write_page", lambda parts: report.write_page(parts, tmp_path / "proof.md"))
    return own


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["proof", *arguments])
    return command.main()


def test_every_part_runs_as_often_as_it_says_times_the_scale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "--scale", "0.5", "--seed", "-1") == 0
    page = (tmp_path / "proof.md").read_text()
    assert "| one | the first | 5 steps |" in page
    assert "| two | the second | 500 steps |" in page
    assert "acked 1,000" in page
    assert page.endswith("## Violations\n\nNone.\n")


def test_a_part_run_alone_leaves_what_is_known_of_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "one", "--seed", "-1") == 0
    assert "| two | the second | not run yet | | |" in (tmp_path / "proof.md").read_text()
    assert run(monkeypatch, "two", "--scale", "0.1", "--seed", "-1") == 0
    page = (tmp_path / "proof.md").read_text()
    assert "| one | the first | 10 steps |" in page
    assert "| two | the second | 100 steps |" in page


def test_runs_of_a_part_can_be_added_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "one", "--seed", "3") == 1
    assert run(monkeypatch, "one", "--seed", "100", "--add") == 0
    page = (tmp_path / "proof.md").read_text()
    assert "| one | the first | 20 steps |" in page
    assert "seeds 3, 100): acked 40" in page
    assert "step 3 of seed 3" in page
    assert run(monkeypatch, "one", "--seed", "100") == 0
    assert "| one | the first | 10 steps |" in (tmp_path / "proof.md").read_text()


def test_a_violation_fails_the_run_after_all_of_it_and_says_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--seed", "3") == 1
    assert "step 3 of seed 3" in capsys.readouterr().out
    page = (tmp_path / "proof.md").read_text()
    assert "- two: `step 3 of seed 3`" in page
    assert "| two | the second | 1,000 steps |" in page


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "one", "--seed", "-1")
    assert "one: 10 of 10" in capsys.readouterr().err


def test_an_unknown_part_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "three")
    assert "no part is called three; there are one, two" in capsys.readouterr().err


def test_of_many_violations_the_first_are_kept_and_all_are_counted() -> None:
    outcome = PartOutcome(name="x", unit="steps", violations=[])
    for number in range(50):
        outcome.violate(str(number))
    assert outcome.violated == 50
    assert outcome.violations == [str(number) for number in range(KEPT_VIOLATIONS)]


def test_the_page_can_be_written_again_from_the_kept_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "one", "--seed", "-1") == 0
    written = (tmp_path / "proof.md").read_text()
    (tmp_path / "proof.md").unlink()
    assert run(monkeypatch, "--page") == 0
    assert (tmp_path / "proof.md").read_text() == written


def test_the_page_in_the_docs_is_the_one_of_the_results_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert report.PAGE.read_text() == report.render(PARTS, report.load(PARTS)), "run python -m tests.proof --page"


def test_every_part_has_a_name_that_make_can_pass_on() -> None:
    assert all(name.isascii() and " " not in name for name in PARTS)
