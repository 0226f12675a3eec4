"""Check the other objects of a queue: payloads, states, groups, keys, ledgers, schedules."""

from collections.abc import Callable, Sequence, Set

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.schedules import Schedule
from holdfast.stores.findings import Findings
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import GroupBody, KeyBody, LedgerBody
from holdfast.stores.objects.verify.reader import VerifyReader

Check = Callable[[str, bytes], list[str]]


async def check_side_objects(
    reader: VerifyReader, ref: QueueRef, items: Sequence[ListedObject], ids: Set[int], findings: Findings
) -> None:
    """Check objects of a queue. `ids` are the messages with metadata in the queue."""
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
            elif id not in ids and not await _has_metadata(reader, ref, id):
                is_payload = folder == "msg"
                findings.totals["unfinished" if is_payload else "leftovers"] += 1
                findings.totals["unfinished_bytes"] += item.size if is_payload else 0
            return
        if (judge := _KINDS.get(folder)) is None or not rest.endswith(layout.METADATA):
            findings.add(f"{item.key} is of no known kind", ref)
            return
        try:
            body = await reader.read_document(item.key)
            if body is not None:
                for what in judge(layout.stem(item.key), body):
                    findings.add(what, ref)
        except StoreUnavailable as error:
            findings.add(error.message, ref)
        except msgspec.MsgspecError as error:
            findings.add(f"{item.key} is damaged: {error}", ref)

    await reader.each(items, check)


async def _has_metadata(reader: VerifyReader, ref: QueueRef, id: int) -> bool:
    """Return whether a message has metadata, by a read: the listing may be older than the object."""
    for dead in (False, True):
        if await reader.is_there(layout.message(ref, id, dead=dead)):
            return True
    return False


def _check_batch(name: str, raw: bytes) -> list[str]:
    msgspec.msgpack.decode(raw, type=GroupBody)
    return []


def _check_key(name: str, raw: bytes) -> list[str]:
    msgspec.msgpack.decode(raw, type=KeyBody)
    return []


def _check_ledger(name: str, raw: bytes) -> list[str]:
    body = msgspec.msgpack.decode(raw, type=LedgerBody)
    problems = []
    if layout.hash_name(body.consumer) != name:
        problems.append(f"the ledger of {body.consumer!r} is stored under {name}")
    problems += [
        f"claim {number} of the ledger of {body.consumer!r} is open, although it was closed"
        for number in body.open
        if number <= body.closed_upto
    ]
    if any(len(token) != 16 for _, receipts in body.open.values() for _, token, _ in receipts):
        problems.append(f"the ledger of {body.consumer!r} has an invalid receipt")
    return problems


def _check_schedule(name: str, raw: bytes) -> list[str]:
    schedule = msgspec.msgpack.decode(raw, type=Schedule)
    problems = []
    if schedule.name != name:
        problems.append(f"schedule {schedule.name!r} is stored under {name!r}")
    if (schedule.cron is None) == (schedule.every_ms is None):
        problems.append(f"schedule {name!r} must have either a cron line or an interval")
    if schedule.last_at is not None and schedule.next_at is not None and schedule.next_at <= schedule.last_at:
        problems.append(f"schedule {name!r} would fire its last tick again")
    return problems


_KINDS: dict[str, Check] = {
    "group": _check_batch,
    "key": _check_key,
    "ledger": _check_ledger,
    "schedule": _check_schedule,
}
