"""What `dequeue` leaves for the commands after it: `HOLDFAST_QUEUE_*` variables, and the payload in a file."""

import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from holdfast.client.blocking import BlockingMessage
    from holdfast.client.message import Message

PREFIX = "HOLDFAST_QUEUE_"
# As every receiver sees them, in this order.
VARIABLES = (
    *("TENANT", "NAME", "MESSAGE_ID", "RECEIPT", "CORRELATION_ID", "LEASE_EXPIRES_AT", "STATE_ETAG", "PAYLOAD_PATH"),
    *("ATTEMPT", "VERSION", "STATE"),
)
# A system takes no variable of more than 128 KiB, and would start no program beside a larger one.
MOST_STATE = 64 << 10


def variables_of(message: "Message", payload_path: str | None, *, with_state: bool = False) -> dict[str, str]:
    """Text for each; what there is none of is empty, so that nothing of an earlier message stays behind."""
    etag = message.etag if with_state else None
    state = "" if etag is None else state_text(message.state)
    values = {
        "TENANT": message.tenant,
        "NAME": message.queue,
        "MESSAGE_ID": str(message.id),
        "RECEIPT": message.receipt,
        "CORRELATION_ID": message.correlation_id,
        "LEASE_EXPIRES_AT": str(message.lease_expires_at),
        "STATE_ETAG": etag or "",
        "PAYLOAD_PATH": payload_path or "",
        "ATTEMPT": str(message.attempt),
        "VERSION": str(message.version),
        "STATE": state,
    }
    return {PREFIX + name: values[name] for name in VARIABLES}


def state_text(document: object) -> str:
    """A state document as a variable holds it: JSON; nothing if that is too long for one."""
    text = msgspec.json.encode(document).decode()
    return text if len(text.encode()) <= MOST_STATE else ""


def as_exports(variables: Mapping[str, str]) -> str:
    """Lines for a shell's `eval`: whatever a value holds, it stays a value."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def as_failure(code: int) -> str:
    """Lines for a shell's `eval` when there is no message: nothing of the last one is left, and `eval` fails too."""
    return f"unset {' '.join(PREFIX + name for name in VARIABLES)}\n(exit {code})\n"


def new_payload_file(message: "Message", directory: str | None = None) -> tuple[int, str]:
    """A file that only this user can read: its descriptor, and its path."""
    return tempfile.mkstemp(prefix=f"holdfast-{message.id}-", dir=directory)


def write_payload(message: "BlockingMessage") -> str:
    """Into a new file."""
    handle, path = new_payload_file(message)
    try:
        with os.fdopen(handle, "wb") as file:
            message.write_to(file)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
    return path


def clean_up(environment: Mapping[str, str]) -> None:
    """Remove the payload's file once its message is settled, if it is one that `write_payload` made."""
    path, id = environment.get(f"{PREFIX}PAYLOAD_PATH", ""), environment.get(f"{PREFIX}MESSAGE_ID", "")
    if path and id and Path(path).name.startswith(f"holdfast-{id}-"):
        Path(path).unlink(missing_ok=True)
