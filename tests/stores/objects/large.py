"""Stream a large payload through an object store on disk in a separate process, and print how much memory that
needed."""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import holdfast

_PART = bytes(range(256)) * 1_024


def parts(size: int) -> Iterator[bytes]:
    while size:
        part = _PART[:size]
        size -= len(part)
        yield part


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024


def main(directory: str, mebibytes: str) -> None:
    size = int(mebibytes) << 20
    with holdfast.open(Path(directory).as_uri(), durability="os", max_payload="4GiB") as hf:
        queue = hf.queue("large")
        queue.enqueue(b"small")
        [message] = queue.claim()
        message.ack()
        before = peak_mib()
        queue.upload(parts(size))
        [message] = queue.claim(lease=600)
        read = checksum = expected = 0
        for part in message.chunks():
            read += len(part)
            checksum = crc32(part, checksum)
        for part in parts(size):
            expected = crc32(part, expected)
        message.ack()
        assert (read, checksum) == (size, expected), "what came out is not what went in"
        sys.stdout.write(f"{peak_mib() - before:.0f}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
