"""Operations by name, for wires that have no shapes of their own for all of them: what each is told, as JSON.

Their answers are the model's own structs.
"""

from typing import Any

import msgspec

from holdfast.model.answers import Info
from holdfast.model.events import JournalEvent
from holdfast.model.message import Draft
from holdfast.model.requests import Progress


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A field that is unknown is refused by its name."""


class Nothing(Arguments, frozen=True, kw_only=True):
    pass


class Get(Arguments, frozen=True, kw_only=True):
    id: str | int
    payload: bool = False


class Peek(Arguments, frozen=True, kw_only=True):
    limit: int = 1


class Browse(Arguments, frozen=True, kw_only=True):
    state: str | None = None
    filter: dict[str, Any] | None = None
    cursor: str | None = None
    limit: int = 100
    payload: bool = False


class Journal(Arguments, frozen=True, kw_only=True):
    after: str | None = None
    limit: int = 1_000
    tenant: str | None = None
    wait_ms: int = 0


class Ledger(Arguments, frozen=True, kw_only=True):
    consumer: str
    number: int | None = None


class LedgerAck(Arguments, frozen=True, kw_only=True):
    consumer: str
    upto: int


class LedgerExtend(Arguments, frozen=True, kw_only=True):
    consumer: str
    lease_ms: int | None = None


class SaveState(Arguments, frozen=True, kw_only=True):
    """`document` is JSON text; or `progress` alone, which leaves the document as it is."""

    receipt: str
    document: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    etag: str | None = None
    progress: Progress | None = None


class Configure(Arguments, frozen=True, kw_only=True):
    """Of a policy or a tenant: what is given changes, the rest stays."""

    changes: dict[str, Any] = {}


class Pause(Arguments, frozen=True, kw_only=True):
    paused: bool = True


class Which(Arguments, frozen=True, kw_only=True):
    filter: dict[str, Any] | None = None


class Purge(Arguments, frozen=True, kw_only=True):
    state: str = "ready"


class Reprioritise(Arguments, frozen=True, kw_only=True):
    priority: int
    filter: dict[str, Any] | None = None


class Move(Arguments, frozen=True, kw_only=True):
    queue: str
    tenant: str | None = None
    filter: dict[str, Any] | None = None
    state: str = "ready"


class EditIn(Arguments, frozen=True, kw_only=True):
    id: str | int
    # Base64 in the document.
    payload: bytes
    content_type: str


class Redrive(Arguments, frozen=True, kw_only=True):
    filter: dict[str, Any] | None = None
    rate_per_s: float | None = None
    dry_run: bool = False
    edit: EditIn | None = None


class Named(Arguments, frozen=True, kw_only=True):
    name: str
    payload: bool = False


class SetSchedule(Arguments, frozen=True, kw_only=True):
    name: str
    cron: str | None = None
    timezone: str | None = None
    every_ms: int | None = None
    message: Draft | None = None
    paused: bool | None = None


class EtagAnswer(msgspec.Struct, frozen=True):
    etag: str | None


class PageAnswer(msgspec.Struct, frozen=True):
    messages: list[Info]
    cursor: str | None


class EventsAnswer(msgspec.Struct, frozen=True):
    events: list[JournalEvent]
    next: str
