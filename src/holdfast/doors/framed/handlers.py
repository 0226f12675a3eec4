"""The handler of each call."""

from collections.abc import Mapping

from holdfast.doors.framed import messages, streams, uploads
from holdfast.doors.framed.call import Handler
from holdfast.wire.framed.calls import (
    CallFrame,
    ClaimCall,
    EnqueueCall,
    ExchangeCall,
    ReadPartCall,
    SettleCall,
    SubscribeCall,
    UploadCall,
)

# By the type of the call: its handler, and whether the call is short, so that it needs no task (`FramedCall.run`).
_HANDLERS: Mapping[type[CallFrame], tuple[Handler, bool]] = {
    EnqueueCall: (messages.enqueue, True),
    ClaimCall: (messages.claim, True),
    ExchangeCall: (messages.exchange, True),
    SettleCall: (messages.settle, True),
    ReadPartCall: (messages.read_part, False),
    SubscribeCall: (streams.subscribe, False),
    UploadCall: (uploads.upload, False),
}
_BY_NAME: tuple[Handler, bool] = (messages.operate, False)


def handler_of(given: CallFrame) -> tuple[Handler, bool]:
    """Return the handler of a call, and whether the call is short."""
    return _HANDLERS.get(type(given), _BY_NAME)
