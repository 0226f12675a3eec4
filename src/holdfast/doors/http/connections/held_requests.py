"""Hold received bytes of one connection until its tenant's turn to be served."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.doors.http.connections.request_boundaries import UnreadRequest, first_request
from holdfast.doors.http.connections.request_reader import RequestReader
from holdfast.doors.sockets.held_input import HeldInput
from holdfast.service.limits.request_turns import RequestTurns, TurnTaken

if TYPE_CHECKING:
    from holdfast.doors.http.connections.connection import HttpConnection
    from holdfast.doors.http.connections.connections import KnownHead


class HeldRequests(HeldInput):
    """The bytes that a connection has received and that wait for a turn while several tenants take turns.

    `data` is all held bytes, in the order in which they were read. While it is not empty, the connection must pass
    further bytes to `take`, even if tenants no longer take turns.
    """

    __slots__ = ("_connection", "_is_in_line", "_known_heads", "_reader", "data")

    def __init__(
        self,
        connection: "HttpConnection",
        reader: RequestReader,
        turns: RequestTurns,
        known_heads: Mapping[bytes, "KnownHead"],
    ) -> None:
        super().__init__(turns)
        self._connection = connection
        self._reader = reader
        self._known_heads = known_heads
        # True while the connection waits for a turn.
        self._is_in_line = False
        self.data = b""

    def take(self, data: bytes) -> None:
        """Process received bytes at once if they are one request and its tenant has used few turns, else hold them."""
        connection = self._connection
        if connection.is_refused:
            connection.parse(data)
        elif self.data:
            # One read is enough to hold; the rest waits in the socket.
            self.data += data
            connection.reading.pause()
        else:
            first = self._first_request(data)
            name = self._name_of(first)
            if first.size >= len(data) and self._turns.may_go_on(name):
                self._begin(first, data)
            else:
                self.data = data
                connection.timeouts.note_bytes()
                self._is_in_line = True
                self._turns.wait(name, self)

    def take_turn(self) -> TurnTaken:
        """Parse and begin one held request, or a part of a large one."""
        self._is_in_line = False
        connection, held = self._connection, self.data
        if not held:  # the connection was lost
            return TurnTaken(0, 0)
        begun = connection.requests_begun
        first = self._first_request(held)
        self.data = held[first.size :]
        self._begin(first, held)
        if connection.is_refused:
            self.data = b""
        elif not connection.is_parsing_paused:
            self.go_on()
        return TurnTaken(connection.requests_begun - begun, min(first.size, len(held)))

    def go_on(self) -> None:
        """Wait for the next turn, or read from the socket again if no bytes are held."""
        if not self.data:
            self._connection.reading.resume()
        elif not self._is_in_line:
            self._is_in_line = True
            self._turns.wait(self._name_of(self._first_request(self.data)), self)

    def drop(self) -> None:
        """Drop all held bytes, because their caller can no longer receive responses."""
        self.data = b""

    def _first_request(self, data: bytes) -> UnreadRequest:
        return first_request(data, self._reader, self._known_heads)

    def _name_of(self, first: UnreadRequest) -> str:
        """Return the name under which a request waits."""
        turns = self._turns
        # Without credentials, the tenant of the connection's previous request is the only clue.
        if turns.has_credentials and (credential := first.credential) is not None:
            return turns.tenant_of(credential) or self._name
        return self._name

    def _begin(self, first: UnreadRequest, data: bytes) -> None:
        """Parse and begin the first request in `data`."""
        known, connection = first.known, self._connection
        if known is not None and first.size <= len(data) and connection.is_free:
            connection.timeouts.stop_patience()
            connection.run_at_once(known, data[known.head_bytes : first.size])
        else:
            connection.parse(data[: first.size])
