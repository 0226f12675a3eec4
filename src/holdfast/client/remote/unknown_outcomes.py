"""The outcome of a verdict whose first try had no response, determined from its repetition."""

from msgspec.structs import replace

from holdfast.client.transport import OperationCalls
from holdfast.model.answers import Result
from holdfast.model.errors import HoldfastError, StaleLease
from holdfast.model.message import MAX_ERROR, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.wire.operations import GET
from holdfast.wire.requests import GetRequest


async def resolve_outcome(operations: OperationCalls, ref: QueueRef, verdict: Verdict, result: Result) -> Result:
    """Return the result of a repeated verdict, after checking whether its first try settled the message.

    A stale lease may mean that the first try, which had no response, was carried out. If the message still exists, its
    version shows this: it is that of the lease unless the message has been claimed since. If the message is gone, the
    question has no answer, and the result stays `stale_lease`, marked as unsure.
    """
    if result.ok or result.error != StaleLease.code:
        return result
    unsure = replace(result, is_unsure=True)
    if verdict.settle is Settle.EXTEND:
        return unsure  # the first try may have shortened the lease, which has expired since
    try:
        info = await operations.call(GET, ref, GetRequest(id=result.snowflake))
    except HoldfastError:
        return unsure
    if info.version != verdict.receipt.version:
        # The message was claimed since. An ack would have prevented that, but a nack or a release would not.
        return result if verdict.settle is Settle.ACK else unsure
    if verdict.settle is Settle.ACK and info.state is State.SUCCEEDED:
        return replace(result, ok=True, error=None, state=info.state)
    error = None if verdict.error is None else verdict.error[:MAX_ERROR]
    # An expired lease keeps the last error, so the same error may come from a nack before the lease expired.
    if verdict.settle is Settle.NACK and error is not None and info.last_error == error and not info.expiries:
        retry_at = info.visible_at if info.state is State.READY else None
        return replace(result, ok=True, error=None, state=info.state, retry_at=retry_at)
    return unsure
