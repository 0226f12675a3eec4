"""Ask the operating system for facts about a connection that its event loop does not know."""

import asyncio
import fcntl
import select
import struct
import termios

# The event that the caller has closed its side. Systems without this flag report it by an event that is always polled.
_HAS_LEFT = getattr(select, "POLLRDHUP", 0)


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Return whether the caller has closed the connection. This works while reading from it is paused."""
    number = _socket_number(transport)
    if number is None:
        return False
    poll = select.poll()
    poll.register(number, _HAS_LEFT)
    return bool(poll.poll(0))


def unacknowledged_bytes(transport: asyncio.WriteTransport) -> int:
    """Return the number of written bytes that the caller's system has not acknowledged.

    The transport's own buffer is not enough: the system takes a megabyte or more from it at a time, so a caller that
    reads slowly would appear to read nothing for minutes.
    """
    own = transport.get_write_buffer_size()
    number = _socket_number(transport)
    if number is None:
        return own
    try:
        [unsent] = struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, struct.pack("i", 0)))
    except OSError:  # the system does not support this query
        return own
    return own + int(unsent)


def _socket_number(transport: asyncio.BaseTransport) -> int | None:
    connected = transport.get_extra_info("socket")
    number = -1 if connected is None else connected.fileno()
    return number if number >= 0 else None
