"""Every operation of the table, carried out by the service method of the same name."""

from typing import TypeVar, cast

from holdfast.model.names import QueueRef
from holdfast.service.admin import AdminService
from holdfast.service.queues import QueueService
from holdfast.service.schedules import ScheduleService
from holdfast.wire.operation import Operation
from holdfast.wire.operations import OPERATIONS

R = TypeVar("R")
A = TypeVar("A")


class Services:
    """The services of one core. `messages` has the operations with hand-written paths, which `call` does not take."""

    def __init__(self, messages: QueueService, admin: AdminService, schedules: ScheduleService) -> None:
        self.messages = messages
        self.admin = admin
        self.every = (messages, admin, schedules)
        self._owners = {
            name: next(owner for owner in self.every if hasattr(owner, name))
            for name, operation in OPERATIONS.items()
            if not operation.is_hot
        }

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        # Looked up at each call: in a forked process the methods are shadowed by ones that refuse.
        method = getattr(self._owners[operation.name], operation.name)
        return cast(A, await method(ref, request))
