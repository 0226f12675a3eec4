"""The files of a bucket are what `objects.proto` says, so that other programs can read them."""

from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from google.protobuf.descriptor import Descriptor

from holdfast.model.message import NewMessage
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.documents import layout, objects_pb2
from holdfast.stores.objects.documents.bodies import MAX_INLINE_BYTES, GroupBody, LedgerBody, SegmentBody
from holdfast.stores.objects.documents.protobuf_mapping import KINDS, BodyDecoder, DamagedBody, encode
from holdfast.testing import EmbeddedSubject
from tests.stores.objects.documents.generate import SOURCES, generate

WEEK_MS = 7 * 86_400_000
ADVICE = "add the field to objects.proto and run `python -m tests.stores.objects.documents.generate`"


def test_the_committed_module_is_what_the_published_file_generates(tmp_path: Path) -> None:
    for path in generate(tmp_path):
        committed = SOURCES / path.relative_to(tmp_path)
        assert path.read_text() == committed.read_text(), ADVICE


def _fields_that_differ(struct_type: type[msgspec.Struct], message: Descriptor) -> list[str]:
    """Compare a struct's fields with its message's, also those of structs in it. A field of another type (a claim of a
    ledger) is compared by the tests that encode and decode it."""
    info = msgspec.inspect.type_info(struct_type)
    assert isinstance(info, msgspec.inspect.StructType)
    differ = {field.name for field in info.fields} ^ {field.name for field in message.fields}
    found = [f"{message.name}.{name}" for name in sorted(differ)]
    for field in info.fields:
        kinds = [field.type]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, msgspec.inspect.UnionType):
                kinds += kind.types
            elif isinstance(kind, msgspec.inspect.ListType):
                kinds.append(kind.item_type)
            elif isinstance(kind, msgspec.inspect.StructType) and field.name in message.fields_by_name:
                found += _fields_that_differ(kind.cls, message.fields_by_name[field.name].message_type)
    return found


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_stored_field_is_in_the_published_file(kind: str) -> None:
    message = objects_pb2.Body.DESCRIPTOR.fields_by_name[kind].message_type
    assert _fields_that_differ(KINDS[kind], message) == [], ADVICE


def test_every_kind_of_the_published_file_has_a_struct() -> None:
    assert {field.name for field in objects_pb2.Body.DESCRIPTOR.fields} == set(KINDS)


def test_a_revision_and_its_encoded_form_have_the_same_fields() -> None:
    one, other = (
        [(field.name, field.number) for field in message.DESCRIPTOR.fields]
        for message in (objects_pb2.Revision, objects_pb2.EncodedRevision)
    )
    assert one == other


@pytest.mark.parametrize(
    "body",
    [
        LedgerBody("c"),
        LedgerBody("c", 3, {4: (5, [(6, b"token", 7), (8, b"other", 9)]), 10: (11, [])}),
        SegmentBody([], [("a/q/b/msg/c.pb", 3), ("d", 4)]),
        GroupBody([]),
        GroupBody([3, 1, 2]),
    ],
)
def test_a_body_is_decoded_as_it_was_encoded(body: msgspec.Struct) -> None:
    assert BodyDecoder(type(body))(encode(body)) == body


def test_a_body_of_another_kind_is_refused() -> None:
    with pytest.raises(DamagedBody, match="the document is a group, not a ledger"):
        BodyDecoder(LedgerBody)(encode(GroupBody([1])))
    with pytest.raises(DamagedBody):
        BodyDecoder(LedgerBody)(b"\xff\xff")


async def _documents() -> dict[str, bytes]:
    bucket = MemoryBucket()
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        q = hf.queue("mail", tenant="acme")
        await q.enqueue([NewMessage(b"small", headers={"a": "1"}), NewMessage(bytes(MAX_INLINE_BYTES + 1), priority=1)])
        await q.enqueue(bytes(MAX_INLINE_BYTES), key="k")
        await q.enqueue(b"", group="g")
        [message, *_] = await q.claim(lease=60)
        await message.save_state({"step": 1})
        await q.schedule("nightly", cron="0 3 * * *", payload={"n": 1})
        await subject.sweep(hf)
        await hf.journal()
        keys = [item.key async for page in bucket.pages("") for item in page]
        return {key: (await bucket.read(key)).content for key in keys}


@pytest.mark.spec("6.1")
async def test_every_document_of_a_bucket_can_be_read_with_the_published_file_alone() -> None:
    documents = {key: raw for key, raw in (await _documents()).items() if key.endswith(".pb")}
    kinds = set()
    for key, raw in documents.items():
        document = objects_pb2.Document.FromString(raw)
        assert document.format == 2
        revision = raw[-len(document.revision.SerializeToString()) :]
        assert crc32(revision) == document.checksum
        kind = document.revision.body.WhichOneof("kind")
        assert kind == layout.kind(key)
        kinds.add(kind)
    assert {"message", "key", "schedule", "node", "step", "segment"} <= kinds


@pytest.mark.spec("6.1")
async def test_names_are_uuids_and_payloads_up_to_16_kib_lie_in_the_document() -> None:
    objects = await _documents()
    messages = {key: raw for key, raw in objects.items() if layout.is_message(key)}
    assert len(messages) == 4
    inline = {}
    for key, raw in messages.items():
        message = objects_pb2.Document.FromString(raw).revision.body.message
        assert layout.message(layout.parse_queue(key), message.id) == key
        assert (layout.payload_of(key) in objects) == (message.size > MAX_INLINE_BYTES)
        inline[message.size] = message.payload
        if message.size == 5:
            assert dict(message.headers) == {"a": "1"}
    assert inline == {
        0: b"",
        5: b"small",
        MAX_INLINE_BYTES: bytes(MAX_INLINE_BYTES),
        MAX_INLINE_BYTES + 1: b"",
    }
