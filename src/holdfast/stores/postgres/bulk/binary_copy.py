"""Rows for COPY in PostgreSQL's binary format, built column by column.

A row is the number of its fields, then for each field the length of its value and the value. So the bytes of a row are
a sequence of parts, and Arrow joins parts column by column: one Python step per row would cost more than the database's
own work on it.
"""

import struct
import sys
from array import array
from collections.abc import AsyncIterator, Mapping
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# The length of a value and the value, in parts: bytes that every row has, or an Arrow array with the bytes of each row.
Field = tuple[Any, ...]

# Length -1 is NULL.
NULL: Field = (struct.pack(">i", -1),)
# Type codes of the modules `struct` and `array`.
BOOLEAN, SMALLINT, INTEGER, BIGINT = "b", "h", "i", "q"

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = struct.pack(">h", -1)
_CHUNK_BYTES = 256 << 10


def encode_constant(kind: str, value: int) -> Field:
    """Encode one number for every row."""
    return (struct.pack(f">i{kind}", struct.calcsize(kind), value),)


def encode_numbers(kind: str, values: pa.Array | None) -> Field:
    """Encode a number or null for each row."""
    if values is None or values.null_count == len(values):
        return NULL
    if values.null_count:
        packed = [None if each is None else struct.pack(f">{kind}", each) for each in values.to_pylist()]
        return encode_bytes(pa.array(packed, pa.binary()))
    least, most = pc.min_max(values).as_py().values()
    if least == most:
        return encode_constant(kind, least)
    return struct.pack(">i", struct.calcsize(kind)), _big_endian(array(kind, values.to_pylist()))


def encode_bytes(values: pa.Array | None) -> Field:
    """Encode bytes, or text as UTF-8, or null for each row."""
    if values is None or values.null_count == len(values):
        return NULL
    values = values.cast(pa.binary())
    return _big_endian(array(INTEGER, pc.fill_null(pc.binary_length(values), -1).to_pylist())), values


async def copy_rows(connection: Any, table: str, fields: Mapping[str, Field], count: int) -> None:
    """Copy `count` rows to a table, from columns by name. Columns without values are left out."""
    used = {name: field for name, field in fields.items() if field is not NULL}
    rows = _joined([struct.pack(">h", len(used)), *(piece for field in used.values() for piece in field)], count)
    await connection.copy_to_table(
        table,
        source=_stream(rows),
        columns=list(used),
        schema_name="holdfast",
        format="binary",
    )


def _joined(pieces: list[Any], count: int) -> memoryview:
    """Return the bytes of all rows."""
    joined: list[Any] = []
    for is_same, some in groupby(pieces, lambda piece: isinstance(piece, bytes)):
        if is_same:
            joined.append(b"".join(some))
        else:
            joined.extend(some)
    if len(joined) == 1:  # one row, or all alike
        return memoryview(joined[0] * count)
    arguments = [pa.scalar(each, pa.binary()) if isinstance(each, bytes) else each for each in joined]
    made = pc.binary_join_element_wise(*arguments, pa.scalar(b"", pa.binary()), null_handling="replace")
    _, _, data = made.buffers()
    return memoryview(data)


async def _stream(rows: memoryview) -> AsyncIterator[bytes | memoryview]:
    yield _HEAD
    for first in range(0, len(rows), _CHUNK_BYTES):
        yield rows[first : first + _CHUNK_BYTES]
    yield _END


def _big_endian(values: "array[int]") -> pa.Array:
    if sys.byteorder == "little":
        values.byteswap()
    made = pa.FixedSizeBinaryArray.from_buffers(pa.binary(values.itemsize), len(values), [None, pa.py_buffer(values)])
    return made.cast(pa.binary())
