"""Say once, when a worker starts, which of its queues do not exist."""

from collections.abc import Iterable

from holdfast.client.missing import describe_missing
from holdfast.model.names import QueueRef
from holdfast.worker.consuming.connection import WorkerConnection
from holdfast.worker.consuming.waiting import log


async def warn_of_missing(link: WorkerConnection, refs: Iterable[QueueRef]) -> None:
    """Log a warning for each queue that does not exist. It never fails: it must not end the worker."""
    try:
        for ref in refs:
            text = await describe_missing(link.client._connected(), ref, is_waiting=True)
            if text is not None:
                log.warning("%s", text, extra={"tenant": ref.tenant, "queue": ref.queue})
    except Exception:
        log.warning("could not check whether the queues exist", exc_info=True)
