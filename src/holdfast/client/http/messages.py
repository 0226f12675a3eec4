"""Messages over HTTP: as over every wire, but for subscriptions, in which the server sends."""

from collections.abc import AsyncIterator

from holdfast.client.http.calls import HttpCalls, Request
from holdfast.client.http.codec import HttpCodec
from holdfast.client.http.response import Answer
from holdfast.client.http.streams import stream
from holdfast.client.remote.messages import RemoteMessages
from holdfast.client.transport import Operations
from holdfast.model.answers import Delivery
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask


class HttpMessages(RemoteMessages[Request, Answer]):
    def __init__(self, calls: HttpCalls, codec: HttpCodec, operations: Operations) -> None:
        super().__init__(calls, codec, operations)
        self._http = calls

    def stream(self, ref: QueueRef, ask: Ask, prefetch: int) -> AsyncIterator[Delivery]:
        return stream(self._http, self.give_back, ref, ask, prefetch)
