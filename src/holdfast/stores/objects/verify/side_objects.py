"""Checks of what lies beside the messages of a queue: payloads, states, groups, keys, ledgers, schedules."""

from collections.abc import Callable, Sequence, Set

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.schedules import Schedule
from holdfast.stores.findings import Findings
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import Batch, KeyBody, LedgerBody
from holdfast.stores.objects.verify.reader import VerifyReader

Check = Callable[[str, bytes], list[str]]


async def check_beside(
    looking: VerifyReader, ref: QueueRef, items: Sequence[ListedObject], ids: Set[int], findings: Findings
) -> None:
    """`ids` are those that have metadata in this queue."""
    prefix = layout.queue(ref)

    async def check(item: ListedObject) -> None:
        rest = item.key[len(prefix) :]
        folder = rest.rpartition("/")[0].removeprefix("dlq/") if rest.startswith("dlq/") else rest.partition("/")[0]
        if rest == "policy.json":
            return
        is_marker = folder == "group" and rest.count("/") == 2
        if is_marker or folder in ("msg", "state"):
            id = layout.parse_id(item.key)
            if id is None or (folder == "msg" and not rest.endswith(layout.PAYLOAD)):
                findings.add(f"{item.key} is of no known kind", ref)
            elif id not in ids and not await _has_metadata(looking, ref, id):
                is_payload = folder == "msg"
                findings.totals["unfinished" if is_payload else "leftovers"] += 1
                findings.totals["unfinished_bytes"] += item.size if is_payload else 0
            return
        if (judge := _KINDS.get(folder)) is None or not rest.endswith(layout.METADATA):
            findings.add(f"{item.key} is of no known kind", ref)
            return
        try:
            body = await looking.sheet(item.key)
            if body is not None:
                for what in judge(layout.own_name(item.key), body):
                    findings.add(what, ref)
        except StoreUnavailable as error:
            findings.add(error.message, ref)
        except msgspec.MsgspecError as error:
            findings.add(f"{item.key} is damaged: {error}", ref)

    await looking.each(items, check)


async def _has_metadata(looking: VerifyReader, ref: QueueRef, id: int) -> bool:
    """By a read: the listing that showed this may be older."""
    for dead in (False, True):
        if await looking.is_there(layout.message(ref, id, dead=dead)):
            return True
    return False


def _check_batch(name: str, raw: bytes) -> list[str]:
    msgspec.msgpack.decode(raw, type=Batch)
    return []


def _check_key(name: str, raw: bytes) -> list[str]:
    msgspec.msgpack.decode(raw, type=KeyBody)
    return []


def _check_ledger(name: str, raw: bytes) -> list[str]:
    body = msgspec.msgpack.decode(raw, type=LedgerBody)
    problems = []
    if layout.hashed(body.consumer) != name:
        problems.append(f"the ledger of {body.consumer!r} stands under {name}")
    problems += [
        f"claim {number} of ledger {body.consumer!r} is open, but was closed"
        for number in body.open
        if number <= body.closed_upto
    ]
    if any(len(token) != 16 for _, receipts in body.open.values() for _, token, _ in receipts):
        problems.append(f"ledger {body.consumer!r} has a receipt that is none")
    return problems


def _check_schedule(name: str, raw: bytes) -> list[str]:
    schedule = msgspec.msgpack.decode(raw, type=Schedule)
    problems = []
    if schedule.name != name:
        problems.append(f"schedule {schedule.name!r} stands under {name!r}")
    if (schedule.cron is None) == (schedule.every_ms is None):
        problems.append(f"schedule {name!r} has not just one of a cron line and an interval")
    if schedule.last_at is not None and schedule.next_at is not None and schedule.next_at <= schedule.last_at:
        problems.append(f"schedule {name!r} would fire a tick again")
    return problems


_KINDS: dict[str, Check] = {
    "group": _check_batch,
    "key": _check_key,
    "ledger": _check_ledger,
    "schedule": _check_schedule,
}
