"""Blocking sockets that one thread may read while another sends.

The timeouts of a plain socket are options of the socket, because Python's own timeouts cost a call for each read. Two
threads must not use a TLS socket at once, so its reader waits outside the lock under which it reads and sends.
"""

import select
import socket
import ssl
import threading
from typing import Protocol

from holdfast.client.http.socket_pool import ONE_READ, pack_timeout, shut_down


class ByteSocket(Protocol):
    """A blocking socket, plain or TLS."""

    def send(self, data: bytes) -> None:
        """Send all of the data. Raise `OSError`, or `TimeoutError` if the network does not accept it in time."""

    def receive(self, received: list[bytes], limit_s: float | None) -> None:
        """Append the next bytes, which are empty at the end. Raise `OSError`, or `TimeoutError` if none arrive in time.

        An interruption comes before the bytes are read or once they are in the list, so none are lost.
        """

    def is_readable(self) -> bool:
        """Return whether bytes, or the end of the stream, can be read without waiting."""

    def shut_down(self) -> None:
        """End the connection, and wake the thread that reads or sends."""

    def close(self) -> None: ...


class PlainSocket:
    """A socket without TLS."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        """`timeout_s`: how long the network may take to accept data."""
        self._socket = sock
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        # The timeout of a read that is set on the socket, in seconds; 0 for none.
        self._limit_s = 0.0
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack_timeout(timeout_s))

    def send(self, data: bytes) -> None:
        try:
            with self._sending:
                self._socket.sendall(data)
        except BlockingIOError:
            raise TimeoutError from None

    def receive(self, received: list[bytes], limit_s: float | None) -> None:
        limit_s = limit_s or 0.0
        if limit_s != self._limit_s:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack_timeout(limit_s))
            self._limit_s = limit_s
        try:
            received.extend(map(self._socket.recv, ONE_READ))
        except BlockingIOError:
            raise TimeoutError from None

    def is_readable(self) -> bool:
        return bool(self._poll.poll(0))

    def shut_down(self) -> None:
        shut_down(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class TlsSocket:
    """A socket with TLS."""

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
                    received.extend(map(self._socket.recv, ONE_READ))
                    return
            except ssl.SSLWantReadError:
                _wait(self._reading, limit_s)
            except ssl.SSLWantWriteError:
                _wait(self._writing, limit_s)

    def is_readable(self) -> bool:
        return bool(self._socket.pending() or self._reading.poll(0))

    def shut_down(self) -> None:
        shut_down(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def byte_socket(sock: socket.socket, timeout_s: float) -> ByteSocket:
    """Return the byte socket for a socket."""
    return TlsSocket(sock, timeout_s) if isinstance(sock, ssl.SSLSocket) else PlainSocket(sock, timeout_s)


def _wait(poll: select.poll, limit_s: float | None) -> None:
    if not poll.poll(None if limit_s is None else limit_s * 1_000):
        raise TimeoutError
