"""What a verdict without an answer did, found out when it is repeated."""

from msgspec.structs import replace

from holdfast.client.transport import OperationCalls
from holdfast.model.answers import Result
from holdfast.model.errors import HoldfastError, StaleLease
from holdfast.model.message import MAX_ERROR, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.wire.operations import GET
from holdfast.wire.requests import GetRequest


async def clarify(operations: OperationCalls, ref: QueueRef, verdict: Verdict, result: Result) -> Result:
    """A repeated verdict that was refused as stale: was it the first try, unanswered, that settled the message?

    A message that is still there tells: its version is this lease's unless somebody claimed it since. One that is gone
    does not: whoever finished it, it was not left over. That stays a refusal, marked as unsure.
    """
    if result.ok or result.error != StaleLease.code:
        return result
    unsure = replace(result, is_unsure=True)
    if verdict.settle is Settle.EXTEND:
        return unsure  # the first try may have made the lease a shorter one, which has run out since
    try:
        info = await operations.call(GET, ref, GetRequest(id=result.snowflake))
    except HoldfastError:
        return unsure
    if info.version != verdict.receipt.version:
        # Claimed since. An ack would have kept it from that; what gives a message back would not.
        return result if verdict.settle is Settle.ACK else unsure
    if verdict.settle is Settle.ACK and info.state is State.SUCCEEDED:
        return replace(result, ok=True, error=None, state=info.state)
    error = None if verdict.error is None else verdict.error[:MAX_ERROR]
    # A lease that ends by itself keeps the last error, so that a nack before it may have left the same one.
    if verdict.settle is Settle.NACK and error is not None and info.last_error == error and not info.expiries:
        retry_at = info.visible_at if info.state is State.READY else None
        return replace(result, ok=True, error=None, state=info.state, retry_at=retry_at)
    return unsure
