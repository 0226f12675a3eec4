"""The methods on queues: create, delete, list and stats."""

import msgspec

from holdfast.doors.capnp.answers import read_with_room
from holdfast.doors.capnp.calls import CapnpCall
from holdfast.doors.capnp.shapes import write_stats
from holdfast.model.errors import InvalidArgument
from holdfast.model.names import DEFAULT, QueueRef, parse_name
from holdfast.wire.operations import DELETE, QUEUES, SET_POLICY, STATS
from holdfast.wire.requests import ConfigureRequest, DeleteRequest, Nothing

# The bytes of a queue's counts in an answer.
_QUEUE_BYTES = 88

_policy = msgspec.json.Decoder(dict[str, object])


async def create(call: CapnpCall) -> None:
    """Create a queue or change its policy."""
    ref = call.ref()
    try:
        changes = _policy.decode(call.params.policy or b"{}")
    except (msgspec.DecodeError, RecursionError):
        raise InvalidArgument("policy is not a JSON object", field="policy") from None
    await call.session.call(SET_POLICY, ref, ConfigureRequest(changes=changes))


async def delete(call: CapnpCall) -> None:
    """Start deleting a queue."""
    ref = call.ref()
    given_ms = call.params.forceAfterMs
    request = DeleteRequest() if given_ms == -1 else DeleteRequest(force_after_ms=given_ms)
    await call.session.call(DELETE, ref, request)


async def list_queues(call: CapnpCall) -> None:
    """List a tenant's queues with their counts."""
    tenant = parse_name("tenant", call.params.tenant or call.session.caller.own_tenant)
    queues = await read_with_room(
        call,
        lambda: call.session.call(QUEUES, QueueRef(tenant, DEFAULT), Nothing()),
        lambda queues: sum(_QUEUE_BYTES + len(each.queue) for each in queues),
    )
    for out, queue in zip(call.results.init("queues", len(queues)), queues, strict=True):
        write_stats(out, queue)


async def stats(call: CapnpCall) -> None:
    """Return the counts of a queue."""
    ref = call.ref()
    found = await call.session.call(STATS, ref, Nothing())
    out = call.results.init("stats")
    out.queue = ref.queue
    write_stats(out, found)
