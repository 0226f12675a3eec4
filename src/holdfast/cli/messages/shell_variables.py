"""The `HOLDFAST_QUEUE_*` variables and the payload's file, by which `dequeue` passes a message to later commands."""

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
# In the order in which they are printed.
VARIABLES = (
    *("TENANT", "NAME", "MESSAGE_ID", "RECEIPT", "CORRELATION_ID", "LEASE_EXPIRES_AT", "STATE_ETAG", "PAYLOAD_PATH"),
    *("ATTEMPT", "VERSION", "STATE"),
)
# Linux starts no program with a variable of more than 128 KiB.
MAX_STATE_BYTES = 64 << 10


def variables_of(message: "Message", payload_path: str | None, *, with_state: bool = False) -> dict[str, str]:
    """Return all variables of a message. A missing value is the empty string, which replaces an earlier message's."""
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
    """Return a state document as JSON, or the empty string if it is too long for a variable."""
    text = msgspec.json.encode(document).decode()
    return text if len(text.encode()) <= MAX_STATE_BYTES else ""


def as_exports(variables: Mapping[str, str]) -> str:
    """Return `export` lines for a shell's `eval`, with all values quoted."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def as_failure(code: int) -> str:
    """Return lines that unset all variables and make a shell's `eval` fail, for use when there is no message."""
    return f"unset {' '.join(PREFIX + name for name in VARIABLES)}\n(exit {code})\n"


def new_payload_file(message: "Message", directory: str | None = None) -> tuple[int, str]:
    """Create a file that only this user can read. Return its descriptor and its path."""
    return tempfile.mkstemp(prefix=f"holdfast-{message.id}-", dir=directory)


def write_payload(message: "BlockingMessage") -> str:
    """Write a message's payload to a new file, and return its path."""
    handle, path = new_payload_file(message)
    try:
        with os.fdopen(handle, "wb") as file:
            message.write_to(file)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
    return path


def clean_up(environment: Mapping[str, str]) -> None:
    """Remove the payload's file after its message was settled, but only a file that `write_payload` created."""
    path, id = environment.get(f"{PREFIX}PAYLOAD_PATH", ""), environment.get(f"{PREFIX}MESSAGE_ID", "")
    if path and id and Path(path).name.startswith(f"holdfast-{id}-"):
        Path(path).unlink(missing_ok=True)
