"""Check the other objects of a queue: payloads, states, groups, keys, ledgers, schedules."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from holdfast.model.errors import StoreUnavailable
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.invariants.side_records import check_key, check_open_claim, check_schedule
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.schedules import Schedule
from holdfast.stores.findings import Findings
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import GroupBody, KeyBody, LedgerBody
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, DamagedBody
from holdfast.stores.objects.verify.reader import VerifyReader

Check = Callable[[str, bytes, int], Iterable[Problem]]


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
                findings.add(DamageKind.ENTRY_UNKNOWN, f"{item.key} is of no known kind", ref)
            elif id not in ids and not await _has_metadata(reader, ref, id):
                is_payload = folder == "msg"
                findings.totals["unfinished" if is_payload else "leftovers"] += 1
                findings.totals["unfinished_bytes"] += item.size if is_payload else 0
            return
        if (kind := _KINDS.get(folder)) is None or not rest.endswith(layout.METADATA):
            findings.add(DamageKind.ENTRY_UNKNOWN, f"{item.key} is of no known kind", ref)
            return
        try:
            body = await reader.read_document(item.key)
            if body is not None:
                findings.add_all(kind.check(layout.stem(item.key), body, reader.now_ms), ref)
        except StoreUnavailable as error:
            findings.add(kind.unreadable, error.message, ref)
        except DamagedBody as error:
            findings.add(kind.unreadable, f"{item.key} is damaged: {error}", ref)

    await reader.each(items, check)


async def _has_metadata(reader: VerifyReader, ref: QueueRef, id: int) -> bool:
    """Return whether a message has metadata, by a read: the listing may be older than the object."""
    for key in layout.possible_messages(ref, id):
        if await reader.is_there(key):
            return True
    return False


def _check_batch(name: str, raw: bytes, now_ms: int) -> Iterable[Problem]:
    BodyDecoder(GroupBody)(raw)
    return []


def _check_key(name: str, raw: bytes, now_ms: int) -> Iterable[Problem]:
    return check_key(name, BodyDecoder(KeyBody)(raw).id, now_ms)


def _check_ledger(name: str, raw: bytes, now_ms: int) -> Iterator[Problem]:
    body = BodyDecoder(LedgerBody)(raw)
    if layout.hash_name(body.consumer) != name:
        yield Problem(DamageKind.LEDGER_UNREADABLE, f"the ledger of {body.consumer!r} is stored under {name}")
    for number, (_, receipts) in body.open.items():
        held = [Receipt(*receipt) for receipt in receipts]
        yield from check_open_claim(repr(body.consumer), number, held, body.closed_upto)


def _check_schedule(name: str, raw: bytes, now_ms: int) -> Iterator[Problem]:
    yield from check_schedule(name, BodyDecoder(Schedule)(raw))


class _Kind(NamedTuple):
    """A kind of document: its check, and the name of the finding if it cannot be read."""

    check: Check
    unreadable: DamageKind


_KINDS: dict[str, _Kind] = {
    "group": _Kind(_check_batch, DamageKind.GROUP_IN_FLIGHT),
    "key": _Kind(_check_key, DamageKind.KEY_UNREADABLE),
    "ledger": _Kind(_check_ledger, DamageKind.LEDGER_UNREADABLE),
    "schedule": _Kind(_check_schedule, DamageKind.SCHEDULE_UNREADABLE),
}
