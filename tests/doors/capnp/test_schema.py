"""The schema stays compatible with existing clients: fields are added, never moved or removed."""

import uuid
from pathlib import Path
from typing import Any

import capnp
import pytest

from holdfast.wire.capnp.schema import FOR_EVER, SCHEMA, VERSION

# As a client of the first day has them, and as one of a later day may, with a field that nobody here knows.
_OLD = """
struct QueueRef { tenant @0 :Text; queue @1 :Text; }
struct Add { ref @0 :QueueRef; items @1 :List(Data); }
struct Poll { ref @0 :QueueRef; numItems @1 :UInt16; waitMs @2 :UInt32; }
struct Ack { ref @0 :QueueRef; messageId @1 :Data; }
struct Remove { ref @0 :QueueRef; messageId @1 :Data; }
struct Extend { ref @0 :QueueRef; messageId @1 :Data; extendMs @2 :UInt32; }
"""
_LATER = """
struct QueueRef { tenant @0 :Text; queue @1 :Text; region @2 :Text; shard @3 :UInt64; }
"""


def load(tmp_path: Path, text: str) -> Any:
    place = tmp_path / f"schema{uuid.uuid4().hex[:8]}.capnp"
    place.write_text(f"@0x{uuid.uuid4().int >> 64 | 1 << 63:x};\n{text}")
    return capnp.load(str(place))


@pytest.mark.spec("8.5")
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Add", {"ref": {"tenant": "acme", "queue": "jobs"}, "items": [b"one", b"two"]}),
        ("Poll", {"ref": {"tenant": "acme", "queue": "jobs"}, "numItems": 65_535, "waitMs": 5}),
        ("Ack", {"ref": {"tenant": "acme", "queue": "jobs"}, "messageId": b"m" * 16}),
        ("Remove", {"ref": {"tenant": "acme", "queue": "jobs"}, "messageId": b"m" * 16}),
        ("Extend", {"ref": {"tenant": "acme", "queue": "jobs"}, "messageId": b"m" * 16, "extendMs": 9}),
    ],
)
def test_a_request_of_the_first_day_says_the_same_today(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    old = getattr(load(tmp_path, _OLD), name).new_message(**fields)

    with getattr(SCHEMA, name).from_bytes(old.to_bytes()) as read:
        said = read.to_dict()
        assert {field: said[field] for field in fields} == fields
        assert not read._has("receipt") if name in ("Ack", "Remove", "Extend") else True

    # And the other way round: an older reader passes over what came since.
    new = getattr(SCHEMA, name).new_message(**fields)
    if name != "Add":
        setattr(new, "owner" if name == "Poll" else "receipt", "since")
    with getattr(load(tmp_path, _OLD), name).from_bytes(new.to_bytes()) as read:
        assert read.to_dict() == fields


@pytest.mark.spec("8.5")
def test_fields_of_a_later_day_are_passed_over(tmp_path: Path) -> None:
    later = load(tmp_path, _LATER).QueueRef.new_message(tenant="acme", queue="jobs", region="x", shard=7)

    with SCHEMA.QueueRef.from_bytes(later.to_bytes()) as read:
        assert read.to_dict() == {"tenant": "acme", "queue": "jobs"}


def test_what_is_left_out_has_its_usual_value() -> None:
    options = SCHEMA.Options.new_message()
    assert (options.priority, options.deliverAt, options.maxRetries, str(options.form)) == (100, -1, -1, "typed")
    poll = SCHEMA.Poll.new_message()
    assert (poll.numItems, poll.waitMs, poll.leaseMs, poll.number) == (0, 0, 0, -1)
    assert (VERSION, FOR_EVER) == (1, 0xFFFF_FFFF)
