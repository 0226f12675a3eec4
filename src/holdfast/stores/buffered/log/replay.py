"""The records that an earlier run left in the log, and the numbers of those that must never be stored."""

from typing import NamedTuple
from uuid import UUID

import msgspec

from holdfast.stores.buffered.log.records import RecordKind
from holdfast.stores.buffered.log.segments import WalSegment

# The body of a record of kind VOID: the (shard, number) of each record that must never be stored.
encode_numbers = msgspec.msgpack.Encoder().encode
decode_numbers = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode


class WalPosition(NamedTuple):
    """The position of a record among all records of all logs.

    `node` names the log and `epoch` one opening of it. `number` counts the records of each shard in that opening.
    """

    node: UUID
    epoch: int
    shard: int
    number: int


class Logged(NamedTuple):
    """A record that an earlier run left in the log."""

    position: WalPosition
    segment: int
    body: bytes


def records_to_land(segments: list[WalSegment]) -> list[Logged]:
    """Return the records that must be landed, in order."""
    void = {
        (segment.header.epoch, shard, number)
        for segment in segments
        for record in segment.records
        if record.kind is RecordKind.VOID
        for shard, number in decode_numbers(record.body)
    }
    return [
        Logged(
            WalPosition(segment.header.node, segment.header.epoch, record.shard, record.number),
            segment_number,
            record.body,
        )
        for segment in segments
        for segment_number in [segment.header.segment]
        for record in segment.records
        if record.kind is RecordKind.MESSAGES and (segment.header.epoch, record.shard, record.number) not in void
    ]
