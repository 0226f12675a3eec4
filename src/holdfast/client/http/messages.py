"""The calls on messages over HTTP, in which the server sends the deliveries of subscriptions."""

from collections.abc import AsyncIterator

from holdfast.client.http.calls import HttpCalls, HttpRequest
from holdfast.client.http.codec import HttpCodec
from holdfast.client.http.response import HttpReply
from holdfast.client.http.streams import stream
from holdfast.client.remote.messages import RemoteMessages
from holdfast.client.transport import OperationCalls
from holdfast.model.answers import Delivery
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest


class HttpMessages(RemoteMessages[HttpRequest, HttpReply]):
    """The calls on messages over HTTP."""

    def __init__(self, calls: HttpCalls, codec: HttpCodec, operations: OperationCalls) -> None:
        super().__init__(calls, codec, operations)
        self._http = calls

    def stream(self, ref: QueueRef, ask: ClaimRequest, prefetch: int) -> AsyncIterator[Delivery]:
        return stream(self._http, self.give_back, ref, ask, prefetch)
