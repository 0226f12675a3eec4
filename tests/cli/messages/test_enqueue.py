"""`holdfast enqueue`: what goes in, and what is said of it."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.cli.conftest import assert_refused

Run = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("store")


def peeked(run: Run, queue: str = "jobs") -> list[Any]:
    return run("peek", queue, "--json", "-n", 100).lines


def test_an_argument_is_a_payload_and_its_id_is_printed(run: Run) -> None:
    ran = run("enqueue", "jobs", "hello")

    assert ran.code == 0
    [message] = peeked(run)
    assert ran.out == f"{message['id']}\n"
    assert message["content_type"].startswith("text/plain")
    assert message["payload_base64"] == "aGVsbG8="


@pytest.mark.parametrize(
    "text", ['{"order":  7, "x": null}', "7", "[1, 2]", "null", '"text"', "12345678901234567890123"]
)
def test_json_goes_as_json_byte_for_byte(run: Run, store: str, text: str) -> None:
    run("enqueue", "jobs", text)

    with holdfast.open(store) as hf:
        [message] = hf.queue("jobs").claim()
        assert message.payload == text.encode()
        assert message.content_type == "application/json"


def test_stdin_and_files_are_taken_as_they_are(run: Run, store: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\x00\xff bytes")

    run("enqueue", "jobs", f"@{tmp_path / 'body'}")
    run("enqueue", "jobs", "-", stdin=b"\xfe\n")

    with holdfast.open(store) as hf:
        first, second = hf.queue("jobs").claim(2)
        assert (first.payload, first.content_type) == (b"\x00\xff bytes", "application/octet-stream")
        assert second.payload == b"\xfe\n"


@pytest.mark.parametrize("given", ["a file", "stdin", "a pipe by its path"])
def test_a_large_payload_is_uploaded_as_it_is(
    run: Run, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("HOLDFAST_MAX_PAYLOAD", "32MiB")
    body, path = b'{"json": "or not"}' * (1 << 20), tmp_path / "large"
    options = ("--key", "k", "--content-type", "video/mp4", "--json")
    match given:
        case "a file":
            path.write_bytes(body)
            ran = run("enqueue", "films", f"@{path}", *options)
        case "stdin":
            ran = run("enqueue", "films", "-", *options, stdin=body)
        case _:
            os.mkfifo(path)
            writing = threading.Thread(target=path.write_bytes, args=(body,))
            writing.start()
            ran = run("enqueue", "films", f"@{path}", *options)
            writing.join()

    assert (ran.code, ran.err) == (0, "")
    with holdfast.open(store, max_payload="32MiB") as hf:
        [message] = hf.queue("films").claim(lease=60)
        assert (message.id, message.content_type) == (ran.json["id"], "video/mp4")
        assert message.payload == body


def test_a_large_payload_that_is_too_large_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(16 << 20)

    for ran in (run("enqueue", "films", f"@{path}"), run("enqueue", "films", "-", stdin=bytes(16 << 20))):
        assert (ran.code, ran.out) == (4, "")
        assert "max_payload" in ran.err
    assert run("queues", "--json").lines == []


@pytest.mark.parametrize("is_slow", [True, False])
def test_the_progress_of_a_large_payload_is_shown_when_it_takes_a_while(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    monkeypatch.setenv("HOLDFAST_MAX_PAYLOAD", "32MiB")
    monkeypatch.setattr("holdfast.cli.messages.enqueue._BAR_AFTER_S", 1e-9 if is_slow else 1_000)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    path = tmp_path / "large"
    path.write_bytes(bytes(16 << 20))

    ran = run("enqueue", "films", f"@{path}")

    assert ran.code == 0
    assert ("to default/films" in ran.err) == is_slow


def test_every_option_of_the_api_reaches_the_message(run: Run) -> None:
    ran = run(
        *("enqueue", "acme/jobs", "{}", "--priority", 7, "--ttl", "1h", "--key", "k", "--group", "g"),
        *("-H", "a=1", "--header", "b=x=y", "--correlation-id", "corr", "--max-retries", 9),
    )

    assert ran.code == 0
    id = ran.out.strip()
    [message] = [run("get", "acme/jobs", id, "--json").json]
    assert message["priority"] == 7
    assert message["group"] == "g"
    assert message["headers"] == {"a": "1", "b": "x=y"}
    assert message["correlation_id"] == "corr"
    assert message["expires_at"] - message["enqueued_at"] == 3_600_000
    again = run("enqueue", "acme/jobs", "{}", "--key", "k", "--json").json
    assert again == {
        "id": id,
        "snowflake": message["snowflake"],
        "correlation_id": "corr",
        "duplicate": True,
    }


def test_a_delay_and_a_time_put_it_off(run: Run) -> None:
    later = run("enqueue", "jobs", "a", "--delay", "90", "--json").json["id"]
    dated = run("enqueue", "jobs", "b", "--at", "2090-01-31T08:00:00Z", "--json").json["id"]

    assert run("stats", "jobs", "--json").json["delayed"] == 2
    first, second = (run("get", "jobs", id, "--json").json for id in (later, dated))
    assert first["visible_at"] - first["enqueued_at"] == 90_000
    assert second["visible_at"] == 3_789_532_800_000


def test_each_line_becomes_a_message(run: Run) -> None:
    ran = run("enqueue", "jobs", "--lines", stdin=b'{"n": 1}\r\nplain\n\nlast')

    assert ran.code == 0
    assert len(ran.out.splitlines()) == 3
    assert "3 enqueued into default/jobs" in ran.err
    assert [each["content_type"].split(";")[0] for each in peeked(run)] == [
        "application/json",
        "text/plain",
        "text/plain",
    ]


def test_many_of_one_are_enqueued_in_batches(run: Run) -> None:
    ran = run("enqueue", "jobs", "x", "--count", 1_200, "--quiet")

    assert (ran.code, ran.err) == (0, "")
    assert len(set(ran.out.splitlines())) == 1_200
    assert run("stats", "jobs", "--json").json["ready"] == 1_200


def test_quiet_prints_the_ids_one_per_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MAX_PAYLOAD", "16MiB")
    (tmp_path / "large").write_bytes(bytes(9 << 20))

    one = run("enqueue", "jobs", "x", "--quiet", "--priority", 1)
    several = run("enqueue", "jobs", "--lines", "--quiet", stdin=b"a\nb\n")
    large = run("enqueue", "large", f"@{tmp_path / 'large'}", "--quiet")

    assert [ran.err for ran in (one, several, large)] == ["", "", ""]
    assert (one.out + several.out).split() == [each["id"] for each in peeked(run)]
    assert run("get", "large", large.out.strip(), "--quiet").out == large.out


# --- Text that is almost JSON ----------------------------------------------------------------------------------

ALMOST_JSON = [
    ('{"to": ada}', "line 1 column 8"),
    ('  \n{"to": "ada" x}', "line 2 column 14"),
    ("[1, 2", "line 1 column 6"),
    ("[INFO] started", "line 1 column 2"),
    ('"unended', "line 1 column 1"),
    ('{"a": 1} {"b": 2}', "line 1 column 10"),
    ('"lone \\ud800"', "not valid JSON"),
    ("[" * 100_000, "not valid JSON"),
]


@pytest.mark.parametrize("way", ["an argument", "stdin", "a file"])
@pytest.mark.parametrize(("text", "position"), ALMOST_JSON)
def test_text_that_begins_like_json_and_is_not_is_refused_with_the_position(
    run: Run, tmp_path: Path, way: str, text: str, position: str
) -> None:
    (tmp_path / "body").write_text(text)
    given = {"an argument": text, "stdin": "-", "a file": f"@{tmp_path / 'body'}"}[way]

    ran = run("enqueue", "jobs", given, stdin=text.encode())

    assert_refused(ran, 2, position, "--text")
    assert run("stats", "jobs").code == 3


def test_a_line_that_begins_like_json_and_is_not_is_refused_with_its_number(run: Run) -> None:
    ran = run("enqueue", "jobs", "--lines", stdin=b'{"n": 1}\n\n{"n": oops}\n')

    assert_refused(ran, 2, "line 3 of the input", "line 1 column 7", "--text")
    assert run("stats", "jobs").code == 3
    assert run("enqueue", "jobs", "--lines", "--text", stdin=b'{"n": 1}\n{"n": oops}\n').code == 0


def test_a_bad_line_says_how_many_were_enqueued_before_it(run: Run) -> None:
    ran = run("enqueue", "jobs", "--lines", stdin=b"fine\n" * 500 + b"{oops\n")

    assert ran.code == 2
    assert len(ran.out.splitlines()) == 500
    assert "line 501 of the input" in ran.err
    assert "500 were enqueued before it" in ran.err


@pytest.mark.parametrize("text", ['{"to": ada}', '{"to": "ada"}', "hello"])
def test_text_that_is_meant_as_text_goes_as_text(run: Run, store: str, text: str) -> None:
    assert run("enqueue", "jobs", text, "--text").code == 0
    assert run("enqueue", "jobs", text, "--content-type", "text/csv").code == 0

    with holdfast.open(store) as hf:
        first, second = hf.queue("jobs").claim(2)
        assert (first.payload, first.content_type) == (text.encode(), "text/plain; charset=utf-8")
        assert (second.payload, second.content_type) == (text.encode(), "text/csv")


@pytest.mark.parametrize("text", ["12 apples", "-", "nullify", "true story", "falsehood", "hello {name}", "'quoted'"])
def test_text_that_does_not_begin_like_json_stays_text(run: Run, store: str, text: str) -> None:
    assert run("enqueue", "jobs", "--lines", stdin=text.encode()).code == 0

    with holdfast.open(store) as hf:
        [message] = hf.queue("jobs").claim()
        assert (message.payload, message.content_type) == (text.encode(), "text/plain; charset=utf-8")


def test_bytes_that_begin_like_json_stay_bytes(run: Run, store: str) -> None:
    assert run("enqueue", "jobs", "-", stdin=b"{\x00\xff}").code == 0

    with holdfast.open(store) as hf:
        [message] = hf.queue("jobs").claim()
        assert (message.payload, message.content_type) == (b"{\x00\xff}", "application/octet-stream")


def test_a_rate_holds_it_back(run: Run) -> None:
    ran = run("enqueue", "jobs", "x", "--count", 10, "--rate", 100)

    assert ran.code == 0
    times = [json.loads(line)["enqueued_at"] for line in run("peek", "jobs", "-n", 10, "--json").out.splitlines()]
    assert max(times) - min(times) >= 40


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("jobs",), 2, "give a payload"),
        (("jobs", "x", "--count", "2", "--key", "k"), 2, "--key"),
        (("jobs", "x", "--header", "nope"), 2, "NAME=VALUE"),
        (("jobs", "x", "--at", "soon"), 2, "--at"),
        (("jobs", "x", "--lines"), 2, "--lines"),
        (("jobs", "--lines", "--count", "2"), 2, "--count"),
        (("jobs", "@no-such-file"), 4, "no-such-file"),
        (("jobs", "{", "--content-type", "application/json"), 4, "not valid JSON"),
        (("jobs", "{}", "--text", "--content-type", "application/json"), 2, "--text"),
        (("jobs", "@bytes", "--text"), 2, "UTF-8"),
        (("jobs", "x", "--delay", "soon"), 4, "delay"),
        (("jobs", "x", "--priority", "256"), 4, "priority"),
        (("bad name", "x"), 4, "bad name"),
        (("jobs", "x", "--delay", "1s", "--at", "2090-01-01"), 4, "delay"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(run: Run, arguments: tuple[str, ...], code: int, word: str) -> None:
    Path("bytes").write_bytes(b"\xff")

    ran = run("enqueue", *arguments)

    assert ran.code == code, ran
    assert ran.out == ""
    assert ran.err.startswith("holdfast: ")
    assert ran.err.count("\n") == 1
    assert word in ran.err


def test_what_fails_halfway_says_how_much_was_done(run: Run, store: str) -> None:
    with holdfast.open(store) as hf:
        hf.tenant("default").set(quotas={"max_messages": 600})

    ran = run("enqueue", "jobs", "x", "--count", 1_000)

    assert ran.code == 75
    assert len(ran.out.splitlines()) == 500
    assert "500 were enqueued before it" in ran.err
