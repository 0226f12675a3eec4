"""Checks of one message: its metadata, its payload, its state document, its place in a group."""

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import MessageBody, message_of
from holdfast.stores.objects.documents.json_documents import MessageStateDocument
from holdfast.stores.objects.verify.reader import VerifyReader

_TOKEN_BYTES = 16


async def read_message(looking: VerifyReader, key: str) -> MessageBody | None:
    """None: nothing holds under this key. `StoreUnavailable`, naming it, if it is damaged."""
    body = await looking.sheet(key)
    try:
        return None if body is None else message_of(body)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"its metadata is damaged: {error}") from None


async def problems_of(looking: VerifyReader, ref: QueueRef, key: str, body: MessageBody) -> list[str]:
    problems = []
    if body.id != layout.parse_id(key):
        problems.append(f"its metadata stands under {key}, and says it is {body.id}")
    numbers = [note.number for note in body.outbox]
    if numbers != sorted(set(numbers)) or (numbers and numbers[-1] != body.noted):
        problems.append(f"its events waiting for the journal are numbered {numbers}, of {body.noted}")
    if body.moved_to is not None:
        return problems + await _problems_of_stub(looking, key, body)
    if body.is_gone:
        return problems
    if (body.tenant, body.queue) != ref:
        problems.append(f"its metadata says it is of {body.tenant}/{body.queue}")
    problems += _problems_of_life(key, body)
    problems += await _problems_of_payload(looking, key, body)
    problems += await _problems_of_state(looking, key, body)
    if body.group is not None and body.life.state in (State.READY, State.IN_FLIGHT):
        marker = layout.group_member(ref, body.group, body.id)
        if not await looking.is_there(marker):
            problems.append("is not among the messages of its group: nothing would ever claim it")
        batch = layout.group(ref, body.group)
        if body.life.state is State.IN_FLIGHT and not await looking.is_there(batch):
            problems.append(f"is in flight, but the batch of its group is missing: {batch}")
    for stub in body.stubs:
        if not await looking.is_there(stub):
            problems.append(f"moved here, but the note of that in its previous place is missing: {stub}")
    return problems


async def _problems_of_stub(looking: VerifyReader, key: str, body: MessageBody) -> list[str]:
    """Where it leads there is a message that knows of it; or none, if it was deleted half way."""
    assert body.moved_to is not None
    there = await read_message(looking, body.moved_to)
    if there is None:
        return []
    if there.id != body.id:
        return [f"is said to have moved to {body.moved_to}, where another message is"]
    if there.moved_to is None and key not in there.stubs:
        return [f"moved to {body.moved_to}, which does not know that it was here: this would be kept for ever"]
    return []


def _problems_of_life(key: str, body: MessageBody) -> list[str]:
    life, problems = body.life, []
    if (life.state is State.IN_FLIGHT) != (life.lease is not None):
        problems.append(f"is {life.state}, and has {'a' if life.lease else 'no'} lease")
    if life.lease is not None and len(life.lease.token) != _TOKEN_BYTES:
        problems.append("its lease has a token that is none")
    if layout.is_dead(key) and life.state is not State.FAILED:
        problems.append(f"lies among the dead letters, but is {life.state}")
    if life.attempt > life.version:
        problems.append(f"was claimed {life.attempt} times, but has version {life.version}")
    if life.state is State.SUCCEEDED and life.keep_until is None:
        problems.append("succeeded and is not kept, but still there")
    return problems


async def _problems_of_payload(looking: VerifyReader, key: str, body: MessageBody) -> list[str]:
    if not body.size:
        return []
    at = body.payload_at or layout.payload_of(key)
    found = await looking.measured(at)
    if found is None:
        return [f"its payload is not there: {at}"]
    size, checksum = found
    if size != body.size:
        return [f"its payload has {size} bytes, not {body.size}: {at}"]
    return [] if checksum == body.checksum else [f"its payload is damaged, by its checksum: {at}"]


async def _problems_of_state(looking: VerifyReader, key: str, body: MessageBody) -> list[str]:
    """A document is missing only if it was recorded as written: its writer may have died before that."""
    if not body.has_state:
        return []
    at = body.state_at or layout.state_of(key)
    try:
        paper = await looking.paper(at, MessageStateDocument)
    except StoreUnavailable as error:
        return [error.message]
    if paper is None:
        return [f"its state document is missing: {at}"] if body.is_state_written else []
    if paper.version > body.life.version:
        return [f"its state document was written under version {paper.version}, it has {body.life.version}"]
    return []
