"""The answers of the HTTP door: how each is written by the server, and read by the client."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from holdfast.model.answers import BulkResult, Info, Page, Result, Saved, Stats, TenantSummary
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Settle
from holdfast.wire.http import bodies as wire
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
    """One kind of JSON document. `read` raises `msgspec.DecodeError` for a body that is no such document."""

    type: Any
    # Given the answer, the queue and the request.
    write: Callable[[Any, QueueRef, Any], Any]
    read: Callable[[bytes], Any]


def _shape(kind: Any, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> AnswerShape:
    decode = msgspec.json.Decoder(kind).decode
    return AnswerShape(kind, lambda answer, ref, request: write(answer), lambda body: read(decode(body)))


def document(kind: Any) -> AnswerShape:
    """A document that its route's handler, and its client, write and read by themselves."""
    return _shape(kind, lambda answer: answer, lambda answer: answer)


def _config(kind: type[msgspec.Struct], part: str | None = None, documented: Any = None) -> AnswerShape:
    """A configuration, of which a newer server may say more. `part`: it is one field of the document."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode

    def read(body: bytes) -> Any:
        document = decode(body)
        return config_of(document if part is None else document.get(part, {}), kind)

    return AnswerShape(documented or kind, lambda answer, ref, request: answer, read)


def _page_of(answer: wire.MessagesAnswer) -> Page[Info]:
    page: Page[Info] = Page(info_of(each) for each in answer.messages)
    page.cursor = answer.cursor
    return page


def _results(settle: Settle) -> AnswerShape:
    def write(results: list[Result]) -> wire.SettleAnswer:
        return wire.SettleAnswer(results=[result_out(settle, each) for each in results])

    return _shape(wire.SettleAnswer, write, lambda answer: [result_of(settle, each) for each in answer.results])


def _tenants_of(body: bytes) -> list[TenantSummary]:
    return [config_of(each, TenantSummary) for each in _tenants.decode(body).tenants]


class _Tenants(msgspec.Struct):
    tenants: list[dict[str, Any]]


_tenants = msgspec.json.Decoder(_Tenants)

DONE = AnswerShape(Nothing, lambda answer, ref, request: Nothing(), lambda body: None)
PAUSED = AnswerShape(
    wire.PausedAnswer,
    lambda answer, ref, request: wire.PausedAnswer(tenant=ref.tenant, queue=ref.queue, paused=request.paused),
    lambda body: None,
)
DRAINING = AnswerShape(
    wire.DrainingAnswer,
    lambda answer, ref, request: wire.DrainingAnswer(tenant=ref.tenant, queue=ref.queue, draining=True),
    lambda body: None,
)
CHANGED = _shape(
    wire.ChangedAnswer,
    lambda changed: wire.ChangedAnswer(matched=changed.matched, changed=changed.changed),
    lambda answer: BulkResult(answer.matched, answer.changed),
)
REDRIVEN = _shape(
    wire.RedriveAnswer,
    lambda changed: wire.RedriveAnswer(matched=changed.matched, redriven=changed.redriven),
    lambda answer: BulkResult(answer.matched, answer.redriven),
)
SAVED = _shape(
    wire.StateAnswer, lambda saved: wire.StateAnswer(etag=saved.etag), lambda answer: Saved(etag=answer.etag)
)
INFO = _shape(wire.InfoOut, info_out, info_of)
PEEKED = _shape(
    wire.PeekAnswer,
    lambda infos: wire.PeekAnswer(messages=[info_out(each) for each in infos]),
    lambda answer: [info_of(each) for each in answer.messages],
)
PAGE = _shape(
    wire.MessagesAnswer,
    lambda page: wire.MessagesAnswer(messages=[info_out(each) for each in page], cursor=page.cursor),
    _page_of,
)
STATS = document(Stats)
ACKED = _results(Settle.ACK)
EXTENDED = _results(Settle.EXTEND)
LEDGER = _shape(
    wire.LedgerAnswer,
    lambda entries: wire.LedgerAnswer(claims=[ledger_entry_out(each) for each in entries]),
    lambda answer: [ledger_entry_of(each) for each in answer.claims],
)
SCHEDULE = _shape(wire.ScheduleOut, schedule_out, schedule_of)
SCHEDULES = _shape(
    wire.SchedulesAnswer,
    lambda infos: wire.SchedulesAnswer(schedules=[schedule_out(each) for each in infos]),
    lambda answer: [schedule_of(each) for each in answer.schedules],
)
QUEUES = _shape(wire.QueuesAnswer, lambda queues: wire.QueuesAnswer(queues=queues), lambda answer: answer.queues)
QUEUE = AnswerShape(
    wire.QueueAnswer,
    lambda detail, ref, request: wire.QueueAnswer(
        tenant=ref.tenant, queue=ref.queue, policy=detail.policy, **asdict(detail.stats)
    ),
    msgspec.json.Decoder(wire.QueueAnswer).decode,
)
POLICY = _config(QueuePolicy)
POLICY_OF_QUEUE = _config(QueuePolicy, part="policy")
TENANTS = AnswerShape(wire.TenantsAnswer, lambda answer, ref, request: wire.TenantsAnswer(tenants=answer), _tenants_of)
TENANT = AnswerShape(
    wire.TenantAnswer,
    lambda config, ref, request: wire.TenantAnswer(tenant=ref.tenant, **asdict(config)),
    _config(TenantConfig).read,
)
STATS_OF_TENANT = _config(Stats, part="stats", documented=wire.TenantAnswer)
