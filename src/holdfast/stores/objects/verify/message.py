"""Check one message: its metadata, its payload, its state document, its membership in a group."""

from zlib import crc32

from holdfast.model.errors import StoreUnavailable
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.invariants.messages import check_id, check_life, check_options
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import MessageBody
from holdfast.stores.objects.documents.json_documents import MessageStateDocument
from holdfast.stores.objects.documents.protobuf_mapping import DamagedBody, decode_message
from holdfast.stores.objects.verify.reader import VerifyReader


async def read_message(reader: VerifyReader, key: str) -> MessageBody | None:
    """Return the metadata at a key, or None. Raise `StoreUnavailable`, naming the key, if it is damaged."""
    body = await reader.read_document(key)
    try:
        return None if body is None else decode_message(body)
    except DamagedBody as error:
        raise StoreUnavailable(f"its metadata is damaged: {error}") from None


async def problems_of(reader: VerifyReader, ref: QueueRef, key: str, body: MessageBody) -> list[Problem]:
    """Return the problems of one message, found at `key` in the queue `ref`."""
    problems: list[Problem] = []
    if body.id != layout.parse_id(key):
        problems.append(
            Problem(DamageKind.NAME_MISMATCH, f"its metadata is stored under {key}, but its id is {body.id}")
        )
    numbers = [note.number for note in body.outbox]
    if numbers != sorted(set(numbers)) or (numbers and numbers[-1] != body.event_count):
        what = f"its events in the outbox are numbered {numbers}, but it has had {body.event_count} events"
        problems.append(Problem(DamageKind.JOURNAL_GAP, what))
    if body.moved_to is not None:
        return problems + await _problems_of_stub(reader, key, body)
    if body.is_gone:
        return problems
    if (body.tenant, body.queue) != ref:
        what = f"its metadata names another queue: {body.tenant}/{body.queue}"
        problems.append(Problem(DamageKind.MESSAGE_MISPLACED, what))
    problems += check_id(body.id, reader.now_ms)
    problems += check_life(body.life)
    problems += check_options(body.given_correlation_id, body.max_retries)
    if layout.is_dead(key) and body.life.state is not State.FAILED:
        problems.append(Problem(DamageKind.STATE_INVALID, f"is stored in dlq/, but is {body.life.state}"))
    problems += await _problems_of_payload(reader, key, body)
    problems += await _problems_of_state(reader, key, body)
    if body.group is not None and body.life.state in (State.READY, State.IN_FLIGHT):
        marker = layout.group_member(ref, body.group, body.id)
        if not await reader.is_there(marker):
            what = "is not among the messages of its group: no claim would find it"
            problems.append(Problem(DamageKind.GROUP_MEMBER_LOST, what))
        batch = layout.group(ref, body.group)
        if body.life.state is State.IN_FLIGHT and not await reader.is_there(batch):
            what = f"is in flight, but the batch of its group is missing: {batch}"
            problems.append(Problem(DamageKind.GROUP_IN_FLIGHT, what))
    for stub in body.stubs:
        if not await reader.is_there(stub):
            what = f"moved here, but the stub at its previous key is missing: {stub}"
            problems.append(Problem(DamageKind.MESSAGE_LOST, what))
    return problems


async def _problems_of_stub(reader: VerifyReader, key: str, body: MessageBody) -> list[Problem]:
    """Check a stub: its target is a message that knows of it, or no message if that was deleted half way."""
    assert body.moved_to is not None
    there = await read_message(reader, body.moved_to)
    if there is None:
        return []
    if there.id != body.id:
        what = f"has a stub that points to {body.moved_to}, which is another message"
        return [Problem(DamageKind.NAME_MISMATCH, what)]
    if there.moved_to is None and key not in there.stubs:
        what = f"moved to {body.moved_to}, which does not list this stub: the stub would be kept for ever"
        return [Problem(DamageKind.ENTRY_UNKNOWN, what)]
    return []


async def _problems_of_payload(reader: VerifyReader, key: str, body: MessageBody) -> list[Problem]:
    if not body.has_payload_object:
        return _problems_of_content(body, len(body.payload), crc32(body.payload), key)
    at = body.payload_key or layout.payload_of(key)
    found = await reader.measured(at)
    if found is None:
        return [Problem(DamageKind.PAYLOAD_LOST, f"its payload is missing: {at}")]
    return _problems_of_content(body, *found, at)


def _problems_of_content(body: MessageBody, size: int, checksum: int, at: str) -> list[Problem]:
    if size != body.size:
        return [Problem(DamageKind.PAYLOAD_SIZE, f"its payload has {size} bytes instead of {body.size}: {at}")]
    if checksum == body.checksum:
        return []
    return [Problem(DamageKind.PAYLOAD_DAMAGED, f"its payload is damaged (wrong checksum): {at}")]


async def _problems_of_state(reader: VerifyReader, key: str, body: MessageBody) -> list[Problem]:
    """Check the state document. It is missing only if it was recorded as written: its writer may have died before
    that."""
    if not body.has_state:
        return []
    at = body.state_key or layout.state_of(key)
    try:
        document = await reader.read_json(at, MessageStateDocument)
    except StoreUnavailable as error:
        return [Problem(DamageKind.STATE_DOCUMENT_UNREADABLE, error.message)]
    if document is None:
        if not body.is_state_written:
            return []
        return [Problem(DamageKind.STATE_DOCUMENT_LOST, f"its state document is missing: {at}")]
    if document.version > body.life.version:
        what = f"its state document was written under version {document.version}, later than {body.life.version}"
        return [Problem(DamageKind.STATE_DOCUMENT_VERSION, what)]
    return []
