"""Reading of large payloads in parts, for both APIs."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO
from zlib import crc32

from holdfast.model.answers import Delivery
from holdfast.model.errors import Internal

# The bytes of one request: few enough to hold in memory, and enough that the cost of a request does not matter.
PART = 1 << 20

Target = BinaryIO | str | os.PathLike[str]


class PayloadCursor:
    """The position in a payload that is being read.

    The length and the checksum are compared before the last part is returned. After a lost request, the part is
    requested again by its offset, so no part is returned twice.
    """

    __slots__ = ("_checksum", "_delivery", "_expected", "_size", "offset")

    def __init__(self, delivery: Delivery) -> None:
        assert delivery.pieces is not None
        self._delivery = delivery
        self._size = delivery.pieces.size
        self._expected = delivery.pieces.checksum
        self._checksum = 0
        self.offset = 0

    @property
    def is_over(self) -> bool:
        """True if every part was read."""
        return self.offset >= self._size

    def take(self, part: bytes) -> bytes:
        """Count a part that was read, and return it. Raise `Internal` if the payload is damaged."""
        self.offset += len(part)
        self._checksum = crc32(part, self._checksum)
        is_damaged = self.offset > self._size or not part
        if is_damaged or (self.is_over and self._checksum != self._expected):
            raise Internal(
                f"the payload of message {self._delivery.id} differs from the enqueued one in its length or its "
                "checksum; read it again, and if the error repeats, the store is damaged",
                id=self._delivery.id,
            )
        return part


@contextmanager
def opened(target: Target) -> Iterator[BinaryIO]:
    """Open a file for writing.

    A path gets its file once it is complete, and no file after an error. A pipe or a device is written to directly.
    """
    if not isinstance(target, str | os.PathLike):
        yield target
        return
    path = os.path.realpath(target)
    is_there = os.path.exists(path)
    if is_there and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
        return
    begun = f"{path}.{secrets.token_hex(4)}.part"
    try:
        with open(begun, "xb") as file:
            if is_there:
                shutil.copymode(path, begun)
            yield file
        os.replace(begun, path)
    except BaseException:
        if os.path.exists(begun):
            os.unlink(begun)
        raise


def write_all(file: BinaryIO, data: bytes) -> int:
    """Write all of `data`, also to an unbuffered file, which may write less at a time. Return the length."""
    done = 0
    while done < len(data):
        # A file-like object may return None, which means that it wrote everything.
        taken: int | None = file.write(data[done:] if done else data)
        done += len(data) - done if taken is None else taken
    return done
