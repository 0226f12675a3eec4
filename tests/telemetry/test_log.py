"""Each event is one line, whatever its values, and no secret is shown."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.telemetry import log

CANARY = "canary-7f3a9c"
LOG = logging.getLogger("holdfast")


@pytest.fixture
def lines() -> Iterator[Callable[..., list[str]]]:
    """Return a function that configures the log, calls a function, and returns the lines that were written."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level

    def written(log_format: str, act: Callable[[], Any], level: str = "info") -> list[str]:
        stream = io.StringIO()
        log.configure(log_format, level, stream)
        act()
        return stream.getvalue().splitlines()

    yield written
    root.handlers[:] = before
    root.setLevel(level)


Lines = Callable[..., list[str]]


@pytest.mark.spec("8.10")
def test_a_line_of_json_has_time_level_event_and_its_fields(lines: Lines) -> None:
    def act() -> None:
        fields = {"tenant": "acme", "queue": "a", "correlation_id": "c-1", "took_ms": 3}
        logging.getLogger("holdfast.http").warning("refused", extra=fields)

    [line] = lines("json", act)
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "warning",
        "event": "refused",
        "logger": "holdfast.http",
        "tenant": "acme",
        "queue": "a",
        "correlation_id": "c-1",
        "took_ms": 3,
    }
    assert list(json.loads(line))[:3] == ["time", "level", "event"]


@pytest.mark.spec("8.10")
def test_a_line_about_a_queue_has_its_numbers_beside_its_names(lines: Lines) -> None:
    """SPEC 8.10."""
    known = {QueueRef("acme", "a"): QueueNumbers(3, 7)}

    def act() -> None:
        with log.numbering_queues(known.get):
            LOG.info("known", extra={"tenant": "acme", "queue": "a"})
            LOG.info("unknown", extra={"tenant": "acme", "queue": "b"})
            LOG.info("of a tenant", extra={"tenant": "acme"})
            LOG.info("numbered", extra={"tenant": "acme", "queue": "a", "tenant_id": 1, "queue_id": 2})
            LOG.info("of no queue", extra={"tenant": 1, "queue": None})
        LOG.info("after", extra={"tenant": "acme", "queue": "a"})

    numbers = [(each.get("tenant_id"), each.get("queue_id")) for each in map(json.loads, lines("json", act))]
    assert numbers == [(3, 7), (None, None), (None, None), (1, 2), (None, None), (None, None)]


@pytest.mark.parametrize("name", ["holdfast", "asyncio", "somebody.else"])
def test_loggers_of_the_standard_library_come_out_the_same_way(lines: Lines, name: str) -> None:
    def act() -> None:
        logging.getLogger(name).warning("%d of %s", 3, "them", extra={"tenant_id": "acme"})

    [line] = lines("json", act)
    fields = json.loads(line)
    assert (fields["event"], fields["logger"], fields["tenant_id"]) == ("3 of them", name, "acme")


FORGED = '{"level": "info", "event": "forged"}\r\n2026-01-01T00:00:00Z [info] forged'
HOSTILE = f"x\n{FORGED}\x1b[2J\x1b[31m\u2028\u0085\u202e\x00\x7f"


@pytest.mark.parametrize("log_format", log.FORMATS)
def test_no_value_can_end_its_line_or_steer_a_terminal(lines: Lines, log_format: str) -> None:
    def act() -> None:
        LOG.info("enqueued", extra={"correlation_id": HOSTILE})
        LOG.info(HOSTILE)
        LOG.info("nested", extra={"headers": {HOSTILE: [HOSTILE]}})
        LOG.info("bytes", extra={"path": HOSTILE.encode()})
        logging.getLogger("somebody.else").info("%s", HOSTILE, extra={"correlation_id": HOSTILE})

    written = lines(log_format, act)
    assert len(written) == 5
    for line in written:
        assert line.isprintable()
        assert line.startswith("{") == (log_format == "json")
        assert log_format == "console" or json.loads(line)["event"] != "forged"


@pytest.mark.parametrize("log_format", log.FORMATS)
def test_an_error_text_with_line_ends_cannot_pass_for_a_line(lines: Lines, log_format: str) -> None:
    def act() -> None:
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            LOG.exception("broke")
            logging.getLogger("somebody.else").exception("broke")

    for line in lines(log_format, act):
        assert line.isprintable()
        assert line.startswith(("{", "  | ")) or "broke" in line


@pytest.mark.parametrize("log_format", log.FORMATS)
def test_each_value_is_cut_at_a_kibibyte(lines: Lines, log_format: str) -> None:
    def act() -> None:
        fields = {"path": "\N{SNOWMAN}" * 5_000, "many": ["y" * 5_000] * 1_000, "deep": {"a": "z" * 5_000}}
        LOG.info("x" * 5_000, extra=fields)

    [line] = lines(log_format, act)
    assert "x" * 1_021 + "..." in line
    assert "x" * 1_022 not in line
    assert len(line) < 70_000
    if log_format == "json":
        assert len(json.loads(line)["path"].encode()) <= 1_024


SECRETS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {"authorization": f"Bearer {CANARY}"}),
    ("plain", {"Authorization": CANARY}),
    ("plain", {"jwt_secret": CANARY}),
    ("plain", {"password": CANARY, "token": CANARY, "lease_token": CANARY, "receipt": CANARY, "receipts": [CANARY]}),
    ("plain", {"headers": {"authorization": CANARY, "cookie": CANARY, "x-api-key": CANARY, "apikey": CANARY}}),
    ("plain", {"headers": [{"deep": {"secret": CANARY}}]}),
    ("plain", {"_token": CANARY}),
    (f"Authorization: Bearer {CANARY}", {}),
    (f"GET /v1/queue/watch?token={CANARY}&x=1", {}),
    (f'{{"receipt": "{CANARY}", "token":"{CANARY}"}}', {}),
    (f"Settings(jwt_secret='{CANARY}', port=1)", {}),
    (f"cannot reach postgres://user:{CANARY}@db/q", {}),
    (f"bearer {CANARY} was refused", {}),
    (f"eyJhbGciOiJIUzI1NiJ9.eyJ0ZW5hbnQi{CANARY}.{CANARY}", {}),
]


@pytest.mark.parametrize("log_format", log.FORMATS)
@pytest.mark.parametrize(("event", "fields"), SECRETS)
def test_a_secret_never_shows(lines: Lines, log_format: str, event: str, fields: dict[str, Any]) -> None:
    def act() -> None:
        LOG.info(event, extra=fields)
        logging.getLogger("somebody.else").info("%s", event, extra=fields)
        try:
            raise RuntimeError(event)
        except RuntimeError:
            LOG.exception("failed", extra=fields)

    written = "\n".join(lines(log_format, act))
    assert CANARY not in written
    assert log.HIDDEN in written


def test_console_lines_have_colours_on_a_terminal_alone(lines: Lines) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    assert "\x1b" not in "".join(lines("console", lambda: LOG.info("served", extra={"port": 7077})))
    log.configure("console", "info", terminal)
    LOG.info("served", extra={"port": 7077})
    assert "\x1b[" in terminal.getvalue()


def test_console_values_that_would_run_together_are_quoted(lines: Lines) -> None:
    [line] = lines("console", lambda: LOG.info("served", extra={"path": "a b=c", "tenant_id": "acme"}))
    assert "path='a b=c'" in line
    assert "tenant_id=acme" in line


def test_below_the_level_nothing_is_written(lines: Lines) -> None:
    def act() -> None:
        LOG.debug("claimed", extra={"limit": 1})

    assert lines("json", act) == []
    assert len(lines("json", act, "debug")) == 1


def test_configuring_again_replaces_what_was_there(lines: Lines) -> None:
    first, second = io.StringIO(), io.StringIO()
    log.configure("json", "info", first)
    log.configure("json", "info", second)
    LOG.info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_a_wrong_level_is_refused(lines: Lines) -> None:
    with pytest.raises(KeyError):
        log.configure("json", "loud")
