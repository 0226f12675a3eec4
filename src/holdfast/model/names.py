"""Names of tenants and queues. They are checked once, where a request comes in, and trusted from there on."""

import re
from typing import NamedTuple

from holdfast.model.errors import InvalidName
from holdfast.model.parsing.checks import plain

DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class QueueRef(NamedTuple):
    """The tenant and the name of a queue."""

    tenant: str = DEFAULT
    queue: str = DEFAULT

    def __str__(self) -> str:
        return f"{self.tenant}/{self.queue}"


class QueueNumbers(NamedTuple):
    """The numbers of a queue: the one of its tenant, and its own, which is unique within the tenant."""

    tenant_id: int
    queue_id: int


def parse_name(kind: str, value: object) -> str:
    """Return the name, or raise `InvalidName`. `kind` is the kind of name to show in the error.

    The error shows a shortened `repr` of the name, so that a hostile name cannot forge a line of the log.
    """
    if isinstance(value, str) and _NAME.fullmatch(value):
        return str(plain(value))
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    raise InvalidName(
        f"{kind} {shown} is not a name: use 1-128 characters of A-Z a-z 0-9 . _ - that do not start with a dot",
        kind=kind,
    )


def parse_ref(tenant: object = DEFAULT, queue: object = DEFAULT) -> QueueRef:
    """Return the reference to a queue, or raise `InvalidName`."""
    return QueueRef(parse_name("tenant", tenant), parse_name("queue", queue))
