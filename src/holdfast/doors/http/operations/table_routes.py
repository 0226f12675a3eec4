"""Handle the routes that the table of operations describes completely, and `GET /v1/tenants/{tenant}`."""

from typing import Any

from msgspec.structs import asdict

from holdfast.doors.http.app import Handler
from holdfast.doors.http.calls import HttpCall
from holdfast.doors.http.connections.presence import Presence
from holdfast.doors.http.request_bodies import decode
from holdfast.model.answers import Info, Removed
from holdfast.model.names import DEFAULT, QueueRef, parse_name
from holdfast.wire import operations
from holdfast.wire.http.admin_bodies import TenantAnswer
from holdfast.wire.http.bodies import encode
from holdfast.wire.http.routes import RouteBinding
from holdfast.wire.operation import Operation, Target
from holdfast.wire.requests import Nothing


def make_handler(operation: Operation[Any, Any], binding: RouteBinding[Any]) -> Handler:
    """Return a handler that reads the request, carries out the operation and writes the result, as `binding` says."""
    route = binding.route
    answer_shape = route.answer
    assert answer_shape is not None

    async def handle(call: HttpCall) -> None:
        ref, request = await read_request(call, operation, binding)
        work = call.session.call(operation, ref, request)
        answer = await (_while_present(call, work) if route.ends_with_caller else work)
        if isinstance(answer, Info | Removed):
            call.take_correlation_id(answer.correlation_id)
        await call.answer(encode(answer_shape.write(answer, ref, request)), route.status)

    return handle


async def read_request(
    call: HttpCall, operation: Operation[Any, Any], binding: RouteBinding[Any]
) -> tuple[QueueRef, Any]:
    """Return the queue and the request of a call. Raise `InvalidArgument` or `InvalidName` for a wrong request.

    The query is read before the names and the names before the body, so that the error names the first mistake.
    """
    fields = call.query(*binding.query_fields) if binding.checks_query else {}
    if operation.target is Target.SERVER:
        ref = QueueRef()
    elif operation.target is Target.TENANT:
        ref = QueueRef(parse_name("tenant", call.path["tenant"]), DEFAULT)
    elif binding.is_ref_in_path:
        ref = call.ref(call.path["tenant"], call.path["queue"])
    elif not binding.has_body:
        ref = call.ref(fields.get("tenant"), fields.get("queue"))
    path = call.path if binding.is_ref_in_path else {}
    if not binding.has_body:
        return ref, binding.read(ref, path, binding.read_query(fields))
    body = await call.body()
    document = decode(binding.decoder, body or b"{}" if binding.route.is_body_optional else body)
    if not binding.is_ref_in_path:
        ref = call.ref(document.tenant, document.queue)
    return ref, binding.read(ref, path, document)


async def _while_present(call: HttpCall, work: Any) -> Any:
    """Carry out work while the caller is connected. Completed steps stay done, and a repeated call continues there."""
    presence = Presence(call)
    try:
        return await presence.wait(work, lambda answer: None)
    finally:
        presence.close()


async def get_tenant(call: HttpCall) -> None:
    """Return a tenant's configuration together with its counts, which are two operations."""
    call.query()
    ref = QueueRef(parse_name("tenant", call.path["tenant"]), DEFAULT)
    config = await call.session.call(operations.TENANT, ref, Nothing())
    stats = await call.session.call(operations.TENANT_STATS, ref, Nothing())
    await call.answer(encode(TenantAnswer(tenant=ref.tenant, stats=stats, **asdict(config))))
