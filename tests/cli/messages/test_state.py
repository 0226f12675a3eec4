"""`dequeue --stateful` and `state`: what one attempt leaves for the next."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.cli.conftest import assert_refused
from tests.cli.messages.test_dequeue import exported

Run = Callable[..., Any]
Shell = Callable[..., Any]


@pytest.fixture
def take(run: Run, store: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, str]]:
    """A message in hand, as a shell has it after `eval`."""

    def take() -> dict[str, str]:
        values = exported(run("dequeue", "jobs", "--lease", "1m", "--stateful", "--block", 0).out)
        for name, value in values.items():
            monkeypatch.setenv(f"HOLDFAST_QUEUE_{name}", value)
        return values

    return take


@pytest.mark.spec("10.4")
def test_a_state_is_saved_and_the_next_attempt_finds_it(
    run: Run, take: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("enqueue", "jobs", "body")
    first = take()
    assert (first["STATE"], first["STATE_ETAG"]) == ("", "")

    ran = run("state", '{"page": 7, "by": "a\'b\\n"}')

    assert (ran.code, ran.err) == (0, "")
    saved = exported(ran.out)
    assert saved["STATE"] == '{"page":7,"by":"a\'b\\n"}'
    assert run("release").code == 0
    second = take()
    assert (second["STATE"], second["STATE_ETAG"]) == (saved["STATE"], saved["STATE_ETAG"])
    assert run("state", "8", "--json").json["document"] == 8


def test_a_state_that_somebody_else_saved_is_not_overwritten(run: Run, take: Callable[[], dict[str, str]]) -> None:
    run("enqueue", "jobs", "body")
    held = take()
    etag = run("state", "1", "--json").json["etag"]

    assert_refused(run("state", "2"), 4, "ETag")  # the variable says that there is none yet
    assert_refused(run("state", "2", "--if-match", "x" * len(etag)), 4, "ETag")
    assert run("state", "2", "--if-match", etag, "--receipt", held["RECEIPT"], "--queue", "jobs").code == 0
    run("ack")
    assert_refused(run("state", "3"), 5, "no longer holds")


def test_a_document_comes_from_stdin_or_a_file_and_must_be_json(
    run: Run, take: Callable[[], dict[str, str]], tmp_path: Path
) -> None:
    run("enqueue", "jobs", "body")
    take()
    (tmp_path / "state.json").write_text("[1, 2]")

    etag = run("state", "-", "--json", stdin=b'{"n": 1}').json["etag"]

    assert run("state", "@state.json", "--if-match", etag, "--json").json["document"] == [1, 2]
    assert_refused(run("state", "{n: 1}"), 2, "not JSON")


@pytest.mark.usefixtures("store")
def test_without_a_message_in_hand_it_says_so(run: Run) -> None:
    assert_refused(run("state", "1"), 2, "dequeue")


def test_a_state_too_long_for_a_variable_is_left_to_json(run: Run, take: Callable[[], dict[str, str]]) -> None:
    run("enqueue", "jobs", "body")
    take()
    run("state", "-", stdin=b'"%b"' % (b"x" * (64 << 10)))
    run("release")

    ran = run("dequeue", "jobs", "--stateful")

    assert "--json prints it" in ran.err
    values = exported(ran.out)
    assert values["STATE"] == ""
    assert values["STATE_ETAG"] != ""


@pytest.mark.slow
def test_a_shell_script_carries_on_where_it_was(shell: Shell, run: Run) -> None:
    run("enqueue", "jobs", "body")
    script = """set -e
        eval "$(holdfast dequeue jobs --lease 1m --stateful)"
        eval "$(holdfast state '{"page": 1}')"
        eval "$(holdfast state '{"page": 2}')"
        holdfast release --quiet
        eval "$(holdfast dequeue jobs --lease 1m --stateful)"
        echo "$HOLDFAST_QUEUE_STATE"
    """

    ran = shell(script)

    assert (ran.code, ran.err, ran.out.splitlines()[-1]) == (0, "", '{"page":2}')


# --- Large payloads ------------------------------------------------------------------------------------------------

PAYLOAD = bytes(range(256)) * (10 << 10)


@pytest.fixture
def large(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MAX_PAYLOAD", "16MiB")
    with holdfast.open(store, max_payload=16 << 20) as hf:
        hf.queue("jobs").enqueue(PAYLOAD)


@pytest.mark.usefixtures("large")
def test_a_large_payload_goes_to_a_file(run: Run, tmp_path: Path) -> None:
    path = exported(run("dequeue", "jobs", "--lease", "1m").out)["PAYLOAD_PATH"]
    assert Path(path).read_bytes() == PAYLOAD


@pytest.mark.usefixtures("large")
def test_a_large_payload_goes_where_it_is_told_to(run: Run, tmp_path: Path) -> None:
    assert run("dequeue", "jobs", "--lease", "1m", "--payload-out", "out").code == 0
    assert (tmp_path / "out").read_bytes() == PAYLOAD


@pytest.mark.slow
@pytest.mark.usefixtures("large")
def test_a_large_payload_goes_to_stdout_and_to_a_program(shell: Shell, tmp_path: Path) -> None:
    ran = shell(
        """holdfast dequeue jobs --lease 1m --payload-out - 2>exports >out; . ./exports; holdfast release
        timeout -s TERM 5 holdfast run jobs -- /bin/sh -c 'cat > piped; cp "$0" copied' {}; true"""
    )
    assert ran.code == 0, ran
    for name in ("out", "piped", "copied"):
        assert (tmp_path / name).read_bytes() == PAYLOAD, (name, ran, os.listdir(tmp_path))
