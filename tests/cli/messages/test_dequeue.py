"""`dequeue`, and the verdicts that follow it: in this process, and in a real shell."""

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.messages.shell_variables import VARIABLES

Run = Callable[..., Any]
Shell = Callable[..., Any]


def exported(out: str) -> dict[str, str]:
    """Return the variables that a shell exports after it ran this text."""
    script = f"{out}\nenv -0"
    ran = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True, env={"PATH": os.environ["PATH"]})
    pairs = (each.partition(b"=") for each in ran.stdout.split(b"\0") if each)
    return {
        name.decode().removeprefix("HOLDFAST_QUEUE_"): value.decode()
        for name, _, value in pairs
        if name.startswith(b"HOLDFAST_QUEUE_")
    }


@pytest.mark.spec("10.4")
@pytest.mark.usefixtures("store")
def test_the_exports_name_the_message_and_its_payload(run: Run) -> None:
    id = run("enqueue", "acme/jobs", '{"n": 1}', "--correlation-id", "c-1").out.strip()

    ran = run("dequeue", "acme/jobs", "--lease", "1m")

    assert ran.code == 0
    assert all(line.startswith("export HOLDFAST_QUEUE_") for line in ran.out.splitlines())
    values = exported(ran.out)
    assert list(values) == list(VARIABLES) or set(values) == set(VARIABLES)
    assert values["TENANT"] == "acme"
    assert values["NAME"] == "jobs"
    assert values["MESSAGE_ID"] == id
    assert values["CORRELATION_ID"] == "c-1"
    assert values["STATE_ETAG"] == ""
    assert (values["ATTEMPT"], values["VERSION"]) == ("1", "1")
    path = Path(values["PAYLOAD_PATH"])
    assert path.read_bytes() == b'{"n": 1}'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("store")
def test_an_empty_queue_is_exit_code_3_and_fails_the_eval_too(run: Run) -> None:
    run("policy", "jobs", "max_retries=1")
    ran = run("dequeue", "jobs", "--block", 0)

    assert (ran.code, ran.err) == (3, "")
    evaluated = subprocess.run(["/bin/sh", "-c", f"HOLDFAST_QUEUE_RECEIPT=old\n{ran.out}"], check=False)
    assert evaluated.returncode == 3
    cleared = subprocess.run(
        ["/bin/sh", "-c", f'HOLDFAST_QUEUE_RECEIPT=old\n{ran.out}echo "[$HOLDFAST_QUEUE_RECEIPT]"'],
        capture_output=True,
        check=False,
    )
    assert cleared.stdout == b"[]\n", "nothing of an earlier message is left"


@pytest.mark.usefixtures("store")
def test_as_json_it_answers_the_payload_as_the_wire_does(run: Run) -> None:
    run("enqueue", "jobs", '{"n": 1}')
    run("enqueue", "jobs", "-", stdin=b"\xff")

    ran = run("dequeue", "jobs", "--limit", 5, "--json", "--stateful", "--owner", "me")

    first, second = ran.lines
    assert first["payload"] == {"n": 1}
    assert second["payload_base64"] == "/w=="
    assert first["state"] == {"document": None, "etag": None}
    assert run("get", "jobs", first["id"], "--json").json["owner"] == "me"


@pytest.mark.spec("10.4")
@pytest.mark.usefixtures("store")
def test_the_payload_goes_where_it_is_told_to(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        run("enqueue", "jobs", "body")

    to_file = run("dequeue", "jobs", "--payload-out", tmp_path / "it's here")
    to_stdout = run("dequeue", "jobs", "--payload-out", "-")

    assert exported(to_file.out)["PAYLOAD_PATH"] == str(tmp_path / "it's here")
    assert (tmp_path / "it's here").read_text() == "body"
    assert to_stdout.out == "body"
    assert "export HOLDFAST_QUEUE_RECEIPT=" in to_stdout.err


@pytest.mark.usefixtures("store")
def test_a_payload_that_cannot_be_written_gives_the_message_back(run: Run, tmp_path: Path) -> None:
    run("enqueue", "jobs", "body")

    ran = run("dequeue", "jobs", "--payload-out", tmp_path / "no" / "such" / "place")

    assert ran.code == 4
    assert "No such file" in ran.err
    stats = run("stats", "jobs", "--json").json
    assert (stats["ready"], stats["in_flight"]) == (1, 0)


@pytest.mark.usefixtures("store")
def test_a_shell_takes_one_message_only(run: Run) -> None:
    assert run("dequeue", "jobs", "--limit", 2).code == 2
    assert run("dequeue", "jobs", "--limit", 2, "--payload-out", "f", "--json").code == 2


# --- Verdicts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(run: Run, store: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A message in hand, as a shell has it after `eval`."""
    run("enqueue", "acme/jobs", "body")
    values = exported(run("dequeue", "acme/jobs", "--lease", "1m").out)
    for name, value in values.items():
        monkeypatch.setenv(f"HOLDFAST_QUEUE_{name}", value)
    return values


def test_ack_reads_what_dequeue_left_and_cleans_up(run: Run, held: dict[str, str]) -> None:
    ran = run("ack")

    assert ran.code == 0
    assert ran.out == f"acked {held['MESSAGE_ID']}\n"
    assert not Path(held["PAYLOAD_PATH"]).exists()
    assert run("get", "acme/jobs", held["MESSAGE_ID"]).code == 3


def test_a_second_ack_is_stale_and_exit_code_5(run: Run, held: dict[str, str]) -> None:
    run("ack")
    ran = run("ack")

    assert ran.code == 5
    assert ran.err.startswith("holdfast: this receipt no longer holds the lease on")
    assert ran.out == ""


def test_a_file_that_dequeue_did_not_make_stays(
    run: Run, held: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("mine")
    monkeypatch.setenv("HOLDFAST_QUEUE_PAYLOAD_PATH", str(tmp_path / "mine"))

    assert run("ack").code == 0
    assert (tmp_path / "mine").exists()


def test_nack_keeps_the_error_and_takes_its_options(run: Run, held: dict[str, str]) -> None:
    ran = run("nack", "--error", "no luck", "--delay", "1h", "--json")

    assert ran.json["state"] == "ready"
    info = run("get", "acme/jobs", held["MESSAGE_ID"], "--json").json
    assert info["last_error"] == "no luck"
    assert info["failures"] == 1
    assert info["visible_at"] == ran.json["retry_at"]


def test_a_final_nack_goes_to_the_dead_letters(run: Run, held: dict[str, str]) -> None:
    assert run("nack", "--final", "--json").json["state"] == "failed"
    assert run("dlq", "acme/jobs", "-q").out.strip() == held["MESSAGE_ID"]


def test_a_deferred_nack_counts_as_no_failure(run: Run, held: dict[str, str]) -> None:
    run("nack", "--defer", "--delay", "1h")

    assert run("get", "acme/jobs", held["MESSAGE_ID"], "--json").json["failures"] == 0


def test_extend_holds_it_longer(run: Run, held: dict[str, str]) -> None:
    ran = run("extend", "--lease", "1h", "--json")

    assert ran.json["lease_expires_at"] > int(held["LEASE_EXPIRES_AT"]) + 3_000_000
    assert Path(held["PAYLOAD_PATH"]).exists()


def test_release_gives_it_back_uncounted(run: Run, held: dict[str, str]) -> None:
    assert run("release").code == 0
    info = run("get", "acme/jobs", held["MESSAGE_ID"], "--json").json
    assert (info["state"], info["failures"], info["releases"]) == ("ready", 0, 1)


def test_a_receipt_may_be_given_by_hand(run: Run, held: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"HOLDFAST_QUEUE_{name}", raising=False)

    assert run("ack").code == 2
    assert run("ack", held["RECEIPT"]).code == 2
    assert run("ack", "no receipt", "--queue", "jobs").code == 4
    assert run("ack", held["RECEIPT"], "--queue", "jobs", "--tenant", "acme").code == 0


# --- In a real shell -----------------------------------------------------------------------------------------------

HOSTILE = [
    "$(touch${IFS}pwned)",
    "`touch${IFS}pwned`",
    "';touch${IFS}pwned;'",
    '";touch${IFS}pwned;"',
    "a'b\"c\\d",
    "$HOME;&|<>(){}*?[]!#~",
    "-n",
]


def enqueue_hostile(store: str, hostile: str) -> None:
    with holdfast.open(store) as hf:
        hf.queue("jobs").enqueue(
            b"'; touch pwned; $(touch pwned)", headers={hostile: hostile}, correlation_id=hostile, group=hostile
        )


@pytest.mark.parametrize("hostile", HOSTILE)
def test_eval_is_safe_whatever_a_message_brings(run: Run, store: str, tmp_path: Path, hostile: str) -> None:
    """Both shells are started with the exact output of `dequeue`; the command runs in this process."""
    enqueue_hostile(store, hostile)
    (tmp_path / "exports").write_text(run("dequeue", "jobs", "--lease", "1m", "--stateful").out)
    script = """eval "$(cat exports)" || exit 9
        printf %s "$HOLDFAST_QUEUE_CORRELATION_ID"; printf %s "$HOLDFAST_QUEUE_RECEIPT" >&2"""

    told = []
    for name in ("sh", "bash"):
        ran = subprocess.run([name, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout) == (0, hostile)
        told.append(ran.stderr)

    assert not (tmp_path / "pwned").exists()
    assert told[0] == told[1]
    assert run("ack", told[0], "--queue", "jobs").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sh", "bash"])
def test_a_shell_that_evaluates_dequeue_is_safe(shell: Shell, store: str, tmp_path: Path, name: str) -> None:
    hostile = "".join(HOSTILE)
    enqueue_hostile(store, hostile)

    ran = shell(
        f"""{name} -c 'eval "$(holdfast dequeue jobs --lease 1m --stateful)" || exit 9
        printf %s "$HOLDFAST_QUEUE_CORRELATION_ID"; holdfast ack --quiet'"""
    )

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == hostile
    assert not (tmp_path / "pwned").exists()


def test_eval_is_safe_in_a_hostile_directory(shell: Shell, run: Run, tmp_path: Path) -> None:
    place = tmp_path / "a b'$(touch pwned)\n\"c"
    place.mkdir()
    run("enqueue", "jobs", "body")

    ran = shell(
        'TMPDIR="$1"; export TMPDIR; eval "$(holdfast dequeue jobs)" && cat "$HOLDFAST_QUEUE_PAYLOAD_PATH"', str(place)
    )

    assert (ran.code, ran.out) == (0, "body")
    assert [each.name for each in place.iterdir() if "pwned" in each.name] == []
    assert not (tmp_path / "pwned").exists()


@pytest.mark.spec("10.4")
@pytest.mark.slow
def test_a_script_works_a_queue_until_it_is_empty(shell: Shell, run: Run) -> None:
    run("enqueue", "jobs", "--lines", stdin=b"good 1\nbad\ngood 2\n")
    run("policy", "jobs", "max_retries=0")

    ran = shell("""
        while eval "$(holdfast dequeue jobs --block 0 --lease 1m)"; do
            if grep -q good "$HOLDFAST_QUEUE_PAYLOAD_PATH"; then holdfast ack; else holdfast nack --error "not good"; fi
        done
        echo "ended with $?"
    """)

    assert ran.err == ""
    verbs = [line.split()[0] for line in ran.out.splitlines()]
    assert verbs == ["acked", "nacked", "acked", "ended"]
    stats = run("stats", "jobs", "--json").json
    assert (stats["ready"], stats["in_flight"], stats["failed"]) == (0, 0, 1)


def test_exports_that_cannot_be_written_give_the_message_back(shell: Shell, run: Run) -> None:
    run("enqueue", "jobs", "body")

    ran = shell("holdfast dequeue jobs --lease 1h > /dev/full")

    assert (ran.code, ran.err) == (4, "holdfast: No space left on device\n")
    stats = run("stats", "jobs", "--json").json
    assert (stats["ready"], stats["in_flight"]) == (1, 0)


@pytest.mark.usefixtures("server", "holdfast_on_path")
def test_the_same_over_http(run: Run, tmp_path: Path) -> None:
    script = """
        holdfast enqueue acme/jobs '{"n": null}' >/dev/null
        eval "$(holdfast dequeue acme/jobs --block 5s)" && cat "$HOLDFAST_QUEUE_PAYLOAD_PATH" && holdfast ack --quiet
        holdfast ack; echo " $?"
        holdfast dequeue acme/jobs --block 0 >/dev/null; echo $?
        holdfast get jobs 1; echo $?
    """
    ran = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False, timeout=60)

    assert ran.stdout == '{"n": null} 5\n3\n3\n', ran.stderr
