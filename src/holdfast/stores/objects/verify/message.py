"""Check one message: its metadata, its payload, its state document, its membership in a group."""

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import MessageBody, decode_message
from holdfast.stores.objects.documents.json_documents import MessageStateDocument
from holdfast.stores.objects.verify.reader import VerifyReader

_TOKEN_BYTES = 16


async def read_message(reader: VerifyReader, key: str) -> MessageBody | None:
    """Return the metadata at a key, or None. Raise `StoreUnavailable`, naming the key, if it is damaged."""
    body = await reader.read_document(key)
    try:
        return None if body is None else decode_message(body)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"its metadata is damaged: {error}") from None


async def problems_of(reader: VerifyReader, ref: QueueRef, key: str, body: MessageBody) -> list[str]:
    """Return the problems of one message, found at `key` in the queue `ref`."""
    problems = []
    if body.id != layout.parse_id(key):
        problems.append(f"its metadata is stored under {key}, but its id is {body.id}")
    numbers = [note.number for note in body.outbox]
    if numbers != sorted(set(numbers)) or (numbers and numbers[-1] != body.event_count):
        problems.append(f"its events in the outbox are numbered {numbers}, but it has had {body.event_count} events")
    if body.moved_to is not None:
        return problems + await _problems_of_stub(reader, key, body)
    if body.is_gone:
        return problems
    if (body.tenant, body.queue) != ref:
        problems.append(f"its metadata names another queue: {body.tenant}/{body.queue}")
    problems += _problems_of_life(key, body)
    problems += await _problems_of_payload(reader, key, body)
    problems += await _problems_of_state(reader, key, body)
    if body.group is not None and body.life.state in (State.READY, State.IN_FLIGHT):
        marker = layout.group_member(ref, body.group, body.id)
        if not await reader.is_there(marker):
            problems.append("is not among the messages of its group: no claim would find it")
        batch = layout.group(ref, body.group)
        if body.life.state is State.IN_FLIGHT and not await reader.is_there(batch):
            problems.append(f"is in flight, but the batch of its group is missing: {batch}")
    for stub in body.stubs:
        if not await reader.is_there(stub):
            problems.append(f"moved here, but the stub at its previous key is missing: {stub}")
    return problems


async def _problems_of_stub(reader: VerifyReader, key: str, body: MessageBody) -> list[str]:
    """Check a stub: its target is a message that knows of it, or no message if that was deleted half way."""
    assert body.moved_to is not None
    there = await read_message(reader, body.moved_to)
    if there is None:
        return []
    if there.id != body.id:
        return [f"has a stub that points to {body.moved_to}, which is another message"]
    if there.moved_to is None and key not in there.stubs:
        return [f"moved to {body.moved_to}, which does not list this stub: the stub would be kept for ever"]
    return []


def _problems_of_life(key: str, body: MessageBody) -> list[str]:
    life, problems = body.life, []
    if (life.state is State.IN_FLIGHT) != (life.lease is not None):
        problems.append(f"is {life.state}, but has {'a' if life.lease else 'no'} lease")
    if life.lease is not None and len(life.lease.token) != _TOKEN_BYTES:
        problems.append("its lease has an invalid token")
    if layout.is_dead(key) and life.state is not State.FAILED:
        problems.append(f"is stored in dlq/, but is {life.state}")
    if life.attempt > life.version:
        problems.append(f"was claimed {life.attempt} times, but has version {life.version}")
    if life.state is State.SUCCEEDED and life.keep_until is None:
        problems.append("succeeded without a retention, but still exists")
    return problems


async def _problems_of_payload(reader: VerifyReader, key: str, body: MessageBody) -> list[str]:
    if not body.size:
        return []
    at = body.payload_key or layout.payload_of(key)
    found = await reader.measured(at)
    if found is None:
        return [f"its payload is missing: {at}"]
    size, checksum = found
    if size != body.size:
        return [f"its payload has {size} bytes instead of {body.size}: {at}"]
    return [] if checksum == body.checksum else [f"its payload is damaged (wrong checksum): {at}"]


async def _problems_of_state(reader: VerifyReader, key: str, body: MessageBody) -> list[str]:
    """Check the state document. It is missing only if it was recorded as written: its writer may have died before
    that."""
    if not body.has_state:
        return []
    at = body.state_key or layout.state_of(key)
    try:
        document = await reader.read_json(at, MessageStateDocument)
    except StoreUnavailable as error:
        return [error.message]
    if document is None:
        return [f"its state document is missing: {at}"] if body.is_state_written else []
    if document.version > body.life.version:
        return [f"its state document was written under version {document.version}, later than {body.life.version}"]
    return []
