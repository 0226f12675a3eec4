"""Blocking sockets of which one thread may read while another sends.

A plain socket waits in the system, by options of the socket: Python's own timeouts cost a call more for each read. Two
threads may not use a TLS socket at once, so its reader waits outside the lock under which it is read and sent to.
"""

import select
import socket
import ssl
import struct
import threading
from contextlib import suppress
from typing import Any, Final, Protocol

# Larger buffers are mapped anew by the system for each read, which costs more than the read.
_ONE_READ: Final = (64 << 10,)


class ByteSocket(Protocol):
    def send(self, data: bytes) -> None:
        """Send all of it. Raise `OSError`; `TimeoutError` if the network does not take it in time."""

    def receive(self, received: list[bytes], limit_s: float | None) -> None:
        """Append the next bytes, empty at the end. Raise `OSError`; `TimeoutError` if none come in time.

        An interruption comes before the bytes are taken or when they are in the list, but loses nothing.
        """

    def is_readable(self) -> bool:
        """Return whether bytes, or the end of the stream, can be read without waiting."""

    def shut_down(self) -> None:
        """Wake the thread that reads or sends: the connection is over."""

    def close(self) -> None: ...


class PlainSocket:
    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        """`timeout_s`: for the network to take what is sent."""
        self._socket = sock
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        # How long a read waits now, as the system knows; 0: for ever.
        self._limit_s = 0.0
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))

    def send(self, data: bytes) -> None:
        try:
            with self._sending:
                self._socket.sendall(data)
        except BlockingIOError:
            raise TimeoutError from None

    def receive(self, received: list[bytes], limit_s: float | None) -> None:
        limit_s = limit_s or 0.0
        if limit_s != self._limit_s:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(limit_s))
            self._limit_s = limit_s
        try:
            received.extend(map(self._socket.recv, _ONE_READ))
        except BlockingIOError:
            raise TimeoutError from None

    def is_readable(self) -> bool:
        return bool(self._poll.poll(0))

    def shut_down(self) -> None:
        _shut_down(self._socket)

    def close(self) -> None:
        self._socket.close()


class TlsSocket:
    def __init__(self, sock: ssl.SSLSocket, timeout_s: float) -> None:
        self._socket = sock
        self._timeout_s = timeout_s
        # Held while the TLS library reads or sends, never while a thread waits.
        self._using = threading.Lock()
        self._reading, self._writing = select.poll(), select.poll()
        self._reading.register(sock.fileno(), select.POLLIN)
        self._writing.register(sock.fileno(), select.POLLOUT)
        sock.setblocking(False)

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                with self._using:
                    rest = rest[self._socket.send(rest) :]
            except ssl.SSLWantWriteError:
                _wait(self._writing, self._timeout_s)
            except ssl.SSLWantReadError:
                _wait(self._reading, self._timeout_s)

    def receive(self, received: list[bytes], limit_s: float | None) -> None:
        while True:
            try:
                with self._using:
                    received.extend(map(self._socket.recv, _ONE_READ))
                    return
            except ssl.SSLWantReadError:
                _wait(self._reading, limit_s)
            except ssl.SSLWantWriteError:
                _wait(self._writing, limit_s)

    def is_readable(self) -> bool:
        return bool(self._socket.pending() or self._reading.poll(0))

    def shut_down(self) -> None:
        _shut_down(self._socket)

    def close(self) -> None:
        self._socket.close()


def byte_socket(sock: socket.socket, timeout_s: float) -> ByteSocket:
    return TlsSocket(sock, timeout_s) if isinstance(sock, ssl.SSLSocket) else PlainSocket(sock, timeout_s)


def _wait(poll: select.poll, limit_s: float | None) -> None:
    if not poll.poll(None if limit_s is None else limit_s * 1_000):
        raise TimeoutError


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):  # it is no longer connected, or closed
        # Not the method of a TLS socket, which would take the connection from under the thread that reads it.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    # Zero would mean for ever.
    micros = max(int((seconds - whole) * 1_000_000), 0 if whole or not seconds else 1)
    packed: Any = struct.pack("@ll", whole, micros)
    return bytes(packed)
