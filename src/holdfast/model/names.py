"""Names of tenants and queues: parsed once at the edge, trusted after."""

import re
from typing import NamedTuple

from holdfast.model.errors import InvalidName
from holdfast.model.parsing.checks import plain

DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class QueueRef(NamedTuple):
    """Whose queue, and which."""

    tenant: str = DEFAULT
    queue: str = DEFAULT

    def __str__(self) -> str:
        return f"{self.tenant}/{self.queue}"


def parse_name(kind: str, value: object) -> str:
    """The name itself, or `InvalidName`. `kind` says in the error which name it was.

    The error shows the name by `repr` and cut short: a hostile name must not write a log line of its own.
    """
    if isinstance(value, str) and _NAME.fullmatch(value):
        return str(plain(value))
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    raise InvalidName(
        f"{kind} {shown} is not a name: use 1-128 characters of A-Z a-z 0-9 . _ - that do not start with a dot",
        kind=kind,
    )


def parse_ref(tenant: object = DEFAULT, queue: object = DEFAULT) -> QueueRef:
    return QueueRef(parse_name("tenant", tenant), parse_name("queue", queue))
