"""The services of one core. Each operation of the table is the service method of the same name."""

from typing import TypeVar, cast

from holdfast.model.names import QueueRef
from holdfast.service.admin import AdminService
from holdfast.service.inspection import InspectionService
from holdfast.service.queues import QueueService
from holdfast.service.schedules import ScheduleService
from holdfast.wire.operation import Operation
from holdfast.wire.operations import OPERATIONS

R = TypeVar("R")
A = TypeVar("A")


class Services:
    """The services of one core. `messages` has the operations on the hot path, which doors call without `call`."""

    def __init__(
        self, messages: QueueService, inspection: InspectionService, admin: AdminService, schedules: ScheduleService
    ) -> None:
        self.messages = messages
        self.admin = admin
        self.every = (messages, inspection, admin, schedules)
        self._owners = {
            name: next(owner for owner in self.every if hasattr(owner, name))
            for name, operation in OPERATIONS.items()
            if not operation.is_hot
        }

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        """Call the method of an operation, and return its result."""
        # The method is looked up in each call, because in a forked process it is replaced by one that raises an error.
        method = getattr(self._owners[operation.name], operation.name)
        return cast(A, await method(ref, request))
