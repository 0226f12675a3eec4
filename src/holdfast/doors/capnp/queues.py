"""The methods on queues: create, delete, list, stats."""

import msgspec

from holdfast.doors.capnp.calls import Call
from holdfast.doors.capnp.shapes import write_stats
from holdfast.model.errors import InvalidArgument
from holdfast.model.names import parse_name
from holdfast.service.admin import FORCE_AFTER_MS

_policy = msgspec.json.Decoder(dict[str, object])


async def create(call: Call) -> None:
    ref = call.ref()
    try:
        changes = _policy.decode(call.params.policy or b"{}")
    except (msgspec.DecodeError, RecursionError):
        raise InvalidArgument("policy is not a JSON document of its fields", field="policy") from None
    await call.session.set_policy(ref, changes)


async def delete(call: Call) -> None:
    ref = call.ref()
    force_after_ms = call.params.forceAfterMs
    await call.session.delete(ref, FORCE_AFTER_MS if force_after_ms == -1 else force_after_ms)


async def list_queues(call: Call) -> None:
    tenant = parse_name("tenant", call.params.tenant or call.session.caller.own_tenant)
    queues = await call.session.queues(tenant)
    for out, queue in zip(call.results.init("queues", len(queues)), queues, strict=True):
        write_stats(out, queue)


async def stats(call: Call) -> None:
    ref = call.ref()
    found = await call.session.stats(ref)
    out = call.results.init("stats")
    out.queue = ref.queue
    write_stats(out, found)
