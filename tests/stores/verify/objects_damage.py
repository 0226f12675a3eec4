"""Each kind of damage of docs/verify.md, planted in the documents of an object store."""

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.model.message import State
from holdfast.model.rules.lifecycle import Lease
from holdfast.model.schedules import Schedule
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import KeyBody, LedgerBody, SegmentBody
from holdfast.stores.objects.documents.document_format import encode_document
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, encode
from holdfast.stores.objects.verify.reader import VerifyReader
from holdfast.testing import ManualClock
from tests.stores.objects.verify.test_verify import QUEUE, Lived

Plant = Callable[[Lived], Awaitable[object]]

_LEASE = Lease(token=bytes(16), claimed_at=1, expires_at=2, ends_at=3)
# An id of which the milliseconds lie years ahead.
_FUTURE = 1_000_000_000_000 << 22


async def _rewrite(lived: Lived, folder: str, kind: type[Any], change: Callable[[Any], Any]) -> None:
    """Change the body of the first document in a folder, with a valid checksum."""
    path = next(each for each in sorted(lived.root.glob(f"*/q/*/{folder}/*.pb")))
    await _rewrite_at(lived, path.relative_to(lived.root).as_posix(), kind, change)


async def _rewrite_at(lived: Lived, key: str, kind: type[Any], change: Callable[[Any], Any]) -> None:
    body = await VerifyReader(DiskBucket(lived.root, syncs=False), ManualClock()).read_document(key)
    assert body is not None
    raw, _ = encode_document(encode(change(BodyDecoder(kind)(body))))
    lived.path(key).write_bytes(raw)


def _life(name: str, *, dead: bool = False, **changes: Any) -> Plant:
    """Change the life of a message."""
    return lambda lived: lived.rewrite(
        lived.message(name, dead=dead), lambda body: replace(body, life=replace(body.life, **changes))
    )


def _lease(**changes: Any) -> Plant:
    """Change the lease of the message in flight."""

    async def plant(lived: Lived) -> None:
        def change(body: Any) -> Any:
            return replace(body, life=replace(body.life, lease=replace(body.life.lease, **changes)))

        await lived.rewrite(lived.message("flying"), change)

    return plant


def _body(name: str, **changes: Any) -> Plant:
    return lambda lived: lived.rewrite(lived.message(name), lambda body: replace(body, **changes))


def _cut(pattern: str) -> Plant:
    """Overwrite the first document that matches."""

    async def plant(lived: Lived) -> None:
        next(iter(sorted(lived.root.glob(pattern)))).write_bytes(b"{")

    return plant


def _delete(pattern: str) -> Plant:
    async def plant(lived: Lived) -> None:
        paths = sorted(lived.root.glob(pattern))
        assert paths
        for path in paths:
            path.unlink()

    return plant


def _json(pattern: str, change: Callable[[Any], object]) -> Plant:
    """Change a JSON document in place."""

    async def plant(lived: Lived) -> None:
        path = next(iter(sorted(lived.root.glob(pattern))))
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return plant


async def _cut_message(lived: Lived) -> None:
    path = lived.path(lived.message("flying"))
    path.write_bytes(path.read_bytes()[:20])


async def _delete_message(lived: Lived) -> None:
    lived.path(lived.message("flying")).unlink()


async def _double(lived: Lived) -> None:
    for key_of in (lambda key: key, layout.payload_of, layout.state_of):
        source = lived.path(key_of(lived.message("dead", dead=True)))
        if source.exists():
            shutil.copy(source, lived.path(key_of(lived.message("dead"))))


async def _copy_queue(lived: Lived) -> None:
    shutil.copytree(lived.path("acme/q/mail"), lived.path("acme/q/copy"))
    lived.path("acme/q/copy/policy.json").unlink()


async def _unlist(lived: Lived) -> None:
    await _json("acme/tenant.json", lambda document: document["queues"].pop("mail"))(lived)


async def _move_to_dlq(lived: Lived) -> None:
    source = lived.path(lived.message("flying"))
    goal = lived.path(lived.message("flying", dead=True))
    goal.parent.mkdir(parents=True, exist_ok=True)
    source.rename(goal)


async def _give_future_id(lived: Lived) -> None:
    source = lived.message("late")
    await lived.rewrite(source, lambda body: replace(body, id=_FUTURE))
    lived.path(source).rename(lived.path(layout.message(QUEUE, _FUTURE)))


async def _large_payload(lived: Lived, change: Callable[[bytes], bytes | None]) -> None:
    """Change the only payload that is too large for its message's document."""
    path = max(lived.root.glob("*/q/*/msg/*.bin"), key=lambda each: each.stat().st_size)
    changed = change(path.read_bytes())
    path.unlink() if changed is None else path.write_bytes(changed)


async def _short_payload(lived: Lived) -> None:
    """Flip a byte of a short payload, wherever it is stored."""
    apart = lived.path(layout.payload_of(lived.message("late")))
    path = apart if apart.exists() else lived.path(lived.message("late"))
    raw = path.read_bytes()
    place = raw.index(b"late")
    path.write_bytes(raw[:place] + b"L" + raw[place + 1 :])


async def _reorder(lived: Lived) -> None:
    [*_, last] = sorted((lived.root / ".holdfast/journal").iterdir())
    key = last.relative_to(lived.root).as_posix()

    def change(body: SegmentBody) -> SegmentBody:
        event = next(each for each in body.events if each.event == "enqueued")
        place = body.events.index(event)
        events = [*body.events]
        events[place] = replace(event, snowflake=lived.ids["flying"])
        return replace(body, events=events)

    await _rewrite_at(lived, key, SegmentBody, change)


async def _delete_segment(lived: Lived) -> None:
    sorted((lived.root / ".holdfast/journal").iterdir())[1].unlink()


OBJECTS_DAMAGE: Mapping[str, Plant] = {
    "message-cut": _cut_message,
    "message-deleted": _delete_message,
    "message-doubled": _double,
    "message-moved-by-hand": _body("ready", queue="other"),
    "message-of-unknown-queue": _copy_queue,
    "id-never-given": _give_future_id,
    "state-contradicted": _move_to_dlq,
    "lease-gone": _life("flying", lease=None),
    "lease-left-behind": _life("ready", lease=_LEASE),
    "lease-token-cut": _lease(token=b"short"),
    "lease-too-long": _lease(ends_at=1),
    "version-set-back": _life("flying", version=0),
    "endings-above-claims": _life("flying", failures=9),
    "dead-letter-without-reason": _life("dead", dead=True, reason=None),
    "priority-out-of-range": _life("ready", priority=300),
    "correlation-id-invalid": _body("ready", given_correlation_id="two words"),
    "payload-deleted": lambda lived: _large_payload(lived, lambda raw: None),
    "payload-cut": lambda lived: _large_payload(lived, lambda raw: raw[:-1]),
    "payload-changed": lambda lived: _large_payload(lived, lambda raw: b"!" * len(raw)),
    "short-payload-changed": _short_payload,
    "state-document-cut": _cut("acme/q/mail/state/*.json"),
    "state-document-deleted": _delete("acme/q/mail/state/*.json"),
    "group-member-hidden": _delete("acme/q/mail/group/*/*"),
    "group-not-held": _delete("acme/q/ordered/group/*.pb"),
    "key-cut": _cut("acme/q/mail/key/*.pb"),
    "key-of-no-message": lambda lived: _rewrite(lived, "key", KeyBody, lambda body: replace(body, id=_FUTURE)),
    "ledger-claim-cut": _cut("acme/q/fed/ledger/*.pb"),
    "ledger-claim-reopened": lambda lived: _rewrite(
        lived, "ledger", LedgerBody, lambda body: replace(body, closed_upto=9)
    ),
    "schedule-cut": _cut("acme/q/mail/schedule/*.pb"),
    "schedule-repeats": lambda lived: _rewrite(
        lived, "schedule", Schedule, lambda body: replace(body, last_at=body.next_at)
    ),
    "policy-cut": _cut("acme/q/mail/policy.json"),
    "policy-out-of-range": _json("acme/q/mail/policy.json", lambda document: document["policy"].update(lease_ms=0)),
    "tenant-deleted": _delete("acme/tenant.json"),
    "tenant-config-cut": _cut("acme/tenant.json"),
    "queue-deleted": _delete("acme/q/mail/policy.json"),
    "queue-unlisted": _unlist,
    "number-of-two-queues": _json(
        "acme/tenant.json", lambda document: document["queues"].update(mail=document["queues"]["other"])
    ),
    "number-given-again": _json("acme/tenant.json", lambda document: document.update(next_queue_id=1)),
    "event-cut": _cut(".holdfast/journal/*.pb"),
    "event-deleted": _delete_segment,
    "event-out-of-order": _reorder,
    "state-changed-by-hand": _life("ready", state=State.FAILED, reason="final", settled_at=1),
    "version-changed-by-hand": _life("flying", version=9),
    "node-number-lost": _delete(".holdfast/node/*.pb"),
    "foreign-entry": lambda lived: _foreign(lived),
}


async def _foreign(lived: Lived) -> None:
    lived.path("acme/q/mail/notes.txt").write_text("mine")
