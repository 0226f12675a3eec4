"""The HTTP response document of each operation: how the server writes it and the client reads it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from holdfast.model.answers import BulkResult, Info, Page, Removed, Result, Saved, Stats, TenantSummary
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Settle
from holdfast.wire.http import admin_bodies as admin
from holdfast.wire.http import bodies
from holdfast.wire.http.shapes import (
    config_of,
    info_of,
    info_out,
    ledger_entry_of,
    ledger_entry_out,
    result_of,
    result_out,
    schedule_of,
    schedule_out,
)
from holdfast.wire.requests import Nothing


class AnswerShape(NamedTuple):
    """The JSON document of one kind of response. `read` raises `msgspec.DecodeError` for any other body."""

    type: Any
    # The arguments are the result, the queue and the request.
    write: Callable[[Any, QueueRef, Any], Any]
    read: Callable[[bytes], Any]


def _shape(kind: Any, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> AnswerShape:
    decode = msgspec.json.Decoder(kind).decode
    return AnswerShape(kind, lambda answer, ref, request: write(answer), lambda body: read(decode(body)))


def document(kind: Any) -> AnswerShape:
    """Return the shape of a document that the route's handler writes itself and the client reads itself."""
    return _shape(kind, lambda answer: answer, lambda answer: answer)


def _config(kind: type[msgspec.Struct], part: str | None = None, documented: Any = None) -> AnswerShape:
    """Return the shape of a configuration. Fields that a newer server adds are ignored.

    With `part`, the configuration is that field of the document. `documented` is the type of the whole document.
    """
    decode = msgspec.json.Decoder(dict[str, Any]).decode

    def read(body: bytes) -> Any:
        document = decode(body)
        return config_of(document if part is None else document.get(part, {}), kind)

    return AnswerShape(documented or kind, lambda answer, ref, request: answer, read)


def _page_of(answer: admin.MessagesAnswer) -> Page[Info]:
    page: Page[Info] = Page(info_of(each) for each in answer.messages)
    page.cursor = answer.cursor
    return page


def _results(settle: Settle) -> AnswerShape:
    def write(results: list[Result]) -> bodies.SettleAnswer:
        return bodies.SettleAnswer(results=[result_out(settle, each) for each in results])

    return _shape(bodies.SettleAnswer, write, lambda answer: [result_of(settle, each) for each in answer.results])


def _tenants_of(body: bytes) -> list[TenantSummary]:
    return [config_of(each, TenantSummary) for each in _tenants.decode(body).tenants]


class _Tenants(msgspec.Struct):
    tenants: list[dict[str, Any]]


_tenants = msgspec.json.Decoder(_Tenants)

DONE = AnswerShape(Nothing, lambda answer, ref, request: Nothing(), lambda body: None)
# The correlation id of the removed message is in the header of the response.
REMOVED = AnswerShape(Nothing, lambda answer, ref, request: Nothing(), lambda body: Removed())
PAUSED = AnswerShape(
    admin.PausedAnswer,
    lambda answer, ref, request: admin.PausedAnswer(tenant=ref.tenant, queue=ref.queue, paused=request.paused),
    lambda body: None,
)
DRAINING = AnswerShape(
    admin.DrainingAnswer,
    lambda answer, ref, request: admin.DrainingAnswer(tenant=ref.tenant, queue=ref.queue, draining=True),
    lambda body: None,
)
CHANGED = _shape(
    admin.ChangedAnswer,
    lambda changed: admin.ChangedAnswer(matched=changed.matched, changed=changed.changed),
    lambda answer: BulkResult(answer.matched, answer.changed),
)
REDRIVEN = _shape(
    admin.RedriveAnswer,
    lambda changed: admin.RedriveAnswer(matched=changed.matched, redriven=changed.redriven),
    lambda answer: BulkResult(answer.matched, answer.redriven),
)
SAVED = _shape(
    bodies.StateAnswer, lambda saved: bodies.StateAnswer(etag=saved.etag), lambda answer: Saved(etag=answer.etag)
)
INFO = _shape(admin.InfoOut, info_out, info_of)
PEEKED = _shape(
    admin.PeekAnswer,
    lambda infos: admin.PeekAnswer(messages=[info_out(each) for each in infos]),
    lambda answer: [info_of(each) for each in answer.messages],
)
PAGE = _shape(
    admin.MessagesAnswer,
    lambda page: admin.MessagesAnswer(messages=[info_out(each) for each in page], cursor=page.cursor),
    _page_of,
)
STATS = document(Stats)
ACKED = _results(Settle.ACK)
EXTENDED = _results(Settle.EXTEND)
LEDGER = _shape(
    bodies.LedgerAnswer,
    lambda entries: bodies.LedgerAnswer(claims=[ledger_entry_out(each) for each in entries]),
    lambda answer: [ledger_entry_of(each) for each in answer.claims],
)
SCHEDULE = _shape(admin.ScheduleOut, schedule_out, schedule_of)
SCHEDULES = _shape(
    admin.SchedulesAnswer,
    lambda infos: admin.SchedulesAnswer(schedules=[schedule_out(each) for each in infos]),
    lambda answer: [schedule_of(each) for each in answer.schedules],
)
QUEUES = _shape(admin.QueuesAnswer, lambda queues: admin.QueuesAnswer(queues=queues), lambda answer: answer.queues)
QUEUE = AnswerShape(
    admin.QueueAnswer,
    lambda detail, ref, request: admin.QueueAnswer(
        tenant=ref.tenant, queue=ref.queue, policy=detail.policy, **asdict(detail.stats)
    ),
    msgspec.json.Decoder(admin.QueueAnswer).decode,
)
POLICY = _config(QueuePolicy)
POLICY_OF_QUEUE = _config(QueuePolicy, part="policy")
TENANTS = AnswerShape(
    admin.TenantsAnswer, lambda answer, ref, request: admin.TenantsAnswer(tenants=answer), _tenants_of
)
NAMES = _shape(admin.NamesAnswer, lambda tenants: admin.NamesAnswer(tenants=tenants), lambda answer: answer.tenants)
HOT_QUEUES = _shape(
    admin.HotQueuesAnswer, lambda queues: admin.HotQueuesAnswer(queues=queues), lambda answer: answer.queues
)
TENANT = AnswerShape(
    admin.TenantAnswer,
    lambda config, ref, request: admin.TenantAnswer(tenant=ref.tenant, **asdict(config)),
    _config(TenantConfig).read,
)
STATS_OF_TENANT = _config(Stats, part="stats", documented=admin.TenantAnswer)
