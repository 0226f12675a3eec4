"""The keys of all objects. `<id>` is the id as a UUIDv7, so listings come in order of time.

    <tenant>/tenant.json                    the tenant: its number, its configuration, its queues and their numbers
    <tenant>/room.pb                        of a tenant with quotas: every step that adds or moves messages writes it
    <tenant>/q/<queue>/policy.json          the queue: number, policy, paused, draining
    <tenant>/q/<queue>/msg/<id>.pb          a message's metadata: the source of truth about the message
    <tenant>/q/<queue>/msg/<id>.bin         its payload, if it is not in the metadata
    <tenant>/q/<queue>/state/<id>.json      its state document
    <tenant>/q/<queue>/dlq/msg/<id>.pb …    the same three for a dead letter
    <tenant>/q/<queue>/key/<hash>.pb        an idempotency key and its first message
    <tenant>/q/<queue>/group/<hash>.pb      the batch of a FIFO group that may be in flight
    <tenant>/q/<queue>/group/<hash>/<snowflake>   marks a message as a member of the group; listed in order of id
    <tenant>/q/<queue>/ledger/<hash>.pb     a consumer's numbered claims
    <tenant>/q/<queue>/schedule/<name>.pb   a schedule
    .holdfast/tenants.json                  the number of every tenant
    .holdfast/node/<number>.pb              the holder of a node number
    .holdfast/step/<id>.pb                  the outcome of a multi-document step
    .holdfast/journal/<number>.pb           events, in segments
    .holdfast/journal.json                  the last segment whose outboxes are emptied

Earlier versions named the objects of a message by its snowflake in 19 digits. Such an object keeps its name: its
content gets the current format when the message changes, and a stub under such a name is where a message comes back to.
So a prefix has one object of each kind for an id, under one name or the other, and a crash never leaves both.

No tenant's name begins with a dot, and no name contains a slash, so the keys of two tenants or queues never collide.

How to change this format: a new kind of object gets a new prefix, which `verify/` must know, or it reports the object
as of no known kind. Never reuse a prefix for another kind, and never change the key of an existing kind: processes of
the previous version would not find the objects of the new one.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.ids import from_bytes, to_uuid
from holdfast.model.names import QueueRef

INTERNAL = ".holdfast/"
TENANTS = INTERNAL + "tenants.json"
NODES = INTERNAL + "node/"
STEPS = INTERNAL + "step/"
JOURNAL = INTERNAL + "journal/"
JOURNAL_HEAD = INTERNAL + "journal.json"

METADATA = ".pb"
PAYLOAD = ".bin"

_UUID_LENGTH = 36
_KINDS = {"msg": "message", "key": "key", "group": "group", "ledger": "ledger", "schedule": "schedule"}
_INTERNAL_KINDS = {"node": "node", "step": "step", "journal": "segment"}


def stem(key: str) -> str:
    """Return the last part of a key without its extension."""
    return key[key.rfind("/") + 1 :].partition(".")[0]


def hash_name(text: str) -> str:
    """Return a name of 32 hexadecimal digits for a text that may contain any character."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def pad_id(number: int) -> str:
    """Return a number in 19 digits, so that the order of keys is the order of numbers."""
    return f"{number:019}"


def node(number: int) -> str:
    """Return the key of a node number's document."""
    return f"{NODES}{number:04}.pb"


def step(id: str) -> str:
    """Return the key of a step's record."""
    return f"{STEPS}{id}.pb"


def segment(number: int) -> str:
    """Return the key of a journal segment."""
    return f"{JOURNAL}{pad_id(number)}.pb"


def tenant(name: str) -> str:
    """Return the key of a tenant's document."""
    return f"{name}/tenant.json"


def quota_guard(name: str) -> str:
    """Return the key of the document that guards a tenant's quotas."""
    return f"{name}/room.pb"


def queue(ref: QueueRef) -> str:
    """Return the prefix of all objects of a queue."""
    return f"{ref.tenant}/q/{ref.queue}/"


def parse_queue(key: str) -> QueueRef:
    """Return the queue of a key below it."""
    tenant_name, _, queue_name, _ = key.split("/", 3)
    return QueueRef(tenant_name, queue_name)


def policy(ref: QueueRef) -> str:
    """Return the key of a queue's document."""
    return queue(ref) + "policy.json"


def messages(ref: QueueRef, *, dead: bool = False) -> str:
    """Return the prefix of metadata and payloads, of messages or of dead letters."""
    return queue(ref) + ("dlq/msg/" if dead else "msg/")


def side_prefixes(ref: QueueRef) -> list[str]:
    """Return the prefixes of all objects that belong to single messages."""
    return [messages(ref), messages(ref, dead=True), queue(ref) + "state/", queue(ref) + "dlq/state/", groups(ref)]


def message(ref: QueueRef, id: int, *, dead: bool = False) -> str:
    """Return the key of a new message's metadata."""
    return messages(ref, dead=dead) + to_uuid(id) + METADATA


def message_of_format_1(ref: QueueRef, id: int, *, dead: bool = False) -> str:
    """Return the key that earlier versions gave to a message's metadata."""
    return messages(ref, dead=dead) + pad_id(id) + METADATA


def message_after_move(ref: QueueRef, id: int, stubs: Sequence[str], *, dead: bool = False) -> str:
    """Return the key of a message that moves to a queue. If it was there before, that is the key of the stub it left
    behind."""
    prefix = messages(ref, dead=dead)
    return next((stub for stub in stubs if stub.startswith(prefix)), message(ref, id, dead=dead))


def possible_messages(ref: QueueRef, id: int) -> list[str]:
    """Return all keys that a message's metadata may have, the likely ones first."""
    return [name(ref, id, dead=dead) for name in (message, message_of_format_1) for dead in (False, True)]


def is_of_format_1(key: str) -> bool:
    """Return whether the name of an object is one of earlier versions."""
    return stem(key)[8:9] != "-"


def kind(key: str) -> str:
    """Return the kind of the document with this key, as `objects.proto` names it. Raise `StoreUnavailable` for a key of
    no known kind."""
    parts = key.split("/")
    if key.startswith(INTERNAL):
        found = _INTERNAL_KINDS.get(parts[1])
    elif len(parts) == 2:
        found = "quota_guard"
    else:
        found = _KINDS.get(parts[4] if parts[3] == "dlq" else parts[3])
    if found is None:
        raise StoreUnavailable(f"{key} is of no known kind; check what else writes to this store")
    return found


def payload_of(message_key: str) -> str:
    """Return the key of a payload, by the key of its metadata."""
    return message_key.removesuffix(METADATA) + PAYLOAD


def state_of(message_key: str) -> str:
    """Return the key of a state document, by the key of its metadata."""
    head, _, name = message_key.rpartition("msg/")
    return f"{head}state/{name.removesuffix(METADATA)}.json"


def is_dead(message_key: str) -> bool:
    """Return whether a metadata key is in dlq/."""
    return "/dlq/msg/" in message_key


def is_message(key: str) -> bool:
    """Return whether a key is a message's metadata."""
    return "/msg/" in key and key.endswith(METADATA)


def listing_order(id: int) -> tuple[int, int]:
    """Return a sort key: the ids of a listing are in this order."""
    return (id >> 22, (id & 0xFFF) << 10 | id >> 12 & 0x3FF)


def parse_message(key: str) -> int | None:
    """Return the id in the key of a message's metadata; None for any other key."""
    return parse_id(key) if key.endswith(METADATA) else None


def parse_id(key: str) -> int | None:
    """Return the id in the key of any object that belongs to one message; None if the key has no id."""
    name = stem(key)
    if name[8:9] == "-":
        try:
            return from_bytes(bytes.fromhex(name[:_UUID_LENGTH].replace("-", "")))
        except (ValueError, struct.error, InvalidArgument):
            return None
    digits = name.partition("-")[0]
    return int(digits) if digits.isdecimal() else None


def keys(ref: QueueRef) -> str:
    """Return the prefix of a queue's idempotency keys."""
    return queue(ref) + "key/"


def key(ref: QueueRef, text: str) -> str:
    """Return the key of an idempotency key's document."""
    return keys(ref) + hash_name(text) + METADATA


def groups(ref: QueueRef) -> str:
    """Return the prefix of a queue's groups."""
    return queue(ref) + "group/"


def group(ref: QueueRef, name: str) -> str:
    """Return the key of a group's batch."""
    return groups(ref) + hash_name(name) + METADATA


def group_members(ref: QueueRef, name: str) -> str:
    """Return the prefix of a group's members."""
    return f"{groups(ref)}{hash_name(name)}/"


def group_member(ref: QueueRef, name: str, id: int) -> str:
    """Return the key that marks a message as a member of its group."""
    return group_members(ref, name) + pad_id(id)


def ledger(ref: QueueRef, consumer: str) -> str:
    """Return the key of a consumer's ledger."""
    return f"{queue(ref)}ledger/{hash_name(consumer)}.pb"


def schedules(ref: QueueRef) -> str:
    """Return the prefix of a queue's schedules."""
    return queue(ref) + "schedule/"


def schedule(ref: QueueRef, name: str) -> str:
    """Return the key of a schedule."""
    return f"{schedules(ref)}{name}.pb"
