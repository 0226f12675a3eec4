"""Questions to the operating system about a connection that its event loop does not answer."""

import asyncio
import fcntl
import select
import struct
import termios

# The caller sends no more. Systems without this flag tell of it by one that is always reported.
_HAS_LEFT = getattr(select, "POLLRDHUP", 0)


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Return whether the caller has closed a connection that may not be read at the moment."""
    number = _socket_number(transport)
    if number is None:
        return False
    poll = select.poll()
    poll.register(number, _HAS_LEFT)
    return bool(poll.poll(0))


def untaken_bytes(transport: asyncio.WriteTransport) -> int:
    """Return the bytes that were written and that the caller's system has not acknowledged.

    The transport's own buffer is not enough: the system takes a megabyte or more from it at a time, so a caller that
    reads slowly would seem to read nothing for minutes.
    """
    own = transport.get_write_buffer_size()
    number = _socket_number(transport)
    if number is None:
        return own
    try:
        [unsent] = struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, struct.pack("i", 0)))
    except OSError:  # a system that does not tell
        return own
    return own + int(unsent)


def _socket_number(transport: asyncio.BaseTransport) -> int | None:
    connected = transport.get_extra_info("socket")
    number = -1 if connected is None else connected.fileno()
    return number if number >= 0 else None
