"""Check every rule of the layout (documents/layout.py) against a full listing. Nothing is written, not even to finish a
step.

Processes may be at work meanwhile. A problem is therefore checked again after a pause, and reported only if it is found
both times. Leftovers of a crash are no violations: they are counted for the next sweep.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from holdfast.clock import Clock, SystemClock
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Findings, Progress, Report
from holdfast.stores.objects.buckets.bucket import Bucket, ListedObject, Unanswered
from holdfast.stores.objects.buckets.bucket_url import make_bucket
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.verify.directory import (
    DirectoryFound,
    check_internal,
    check_nodes,
    check_unlisted,
    read_directory,
    report_lost_policy,
)
from holdfast.stores.objects.verify.journal import check_journal
from holdfast.stores.objects.verify.queue import ObjectQueueCheck
from holdfast.stores.objects.verify.reader import VerifyReader

# Pause before a problem is checked again: changes under way have ended by then.
PAUSE_MS = 1_000


def verify(url: str, progress: Progress | None = None) -> Report:
    """Check an object store by its URL. Raise `StoreUnavailable` if it does not respond, and `InvalidArgument` if there
    is no store."""
    bucket = make_bucket(url, syncs=False)
    return asyncio.run(verify_bucket(bucket, SystemClock(), progress))


async def verify_bucket(
    bucket: Bucket, clock: Clock, progress: Progress | None = None, *, pause_ms: int = PAUSE_MS
) -> Report:
    """Check the store in a bucket, and close the bucket. `pause_ms` is waited on the clock before a problem is checked
    again."""
    reader, findings = VerifyReader(bucket, clock), Findings(progress)
    try:
        await _check(reader, findings, pause_ms)
    except Unanswered as error:
        raise StoreUnavailable(f"{bucket.url} does not respond: {error}") from None
    finally:
        await bucket.close()
    return findings.report(bucket.url)


async def _check(reader: VerifyReader, findings: Findings, pause_ms: int) -> None:
    internal = [item async for page in reader.bucket.pages(layout.INTERNAL) for item in page]
    if not internal:
        raise InvalidArgument(f"{reader.bucket.url} holds no store; pass the URL given to `holdfast.open`", field="url")
    directory = await read_directory(reader, findings)
    await _guard(findings, "the internal documents", lambda: check_internal(reader, internal, findings))
    check = ObjectQueueCheck(reader, findings, pause_ms)

    async def check_queue(ref: QueueRef, items: list[ListedObject]) -> None:
        if ref in directory.without_policy:
            evidence = f"the queue has {len(items)} objects, first {items[0].key}"
            if await report_lost_policy(reader, ref, evidence, findings):
                directory.without_policy.discard(ref)
                await check.run(ref, items)
        elif ref in directory.queues:
            await check.run(ref, items)
        elif ref not in directory.others:
            await check_unlisted(reader, ref, items, findings)

    async for ref, items in _objects_by_queue(reader.bucket, directory, findings):
        await _guard(findings, f"queue {ref}", partial(check_queue, ref, items))
    await _guard(findings, "the node numbers", lambda: check_nodes(reader, check.found, findings))
    journal = partial(check_journal, reader, check.found, directory, findings, pause_ms)
    await _guard(findings, "the journal", journal)


async def _objects_by_queue(
    bucket: Bucket, directory: DirectoryFound, findings: Findings
) -> AsyncIterator[tuple[QueueRef, list[ListedObject]]]:
    """Yield all objects by queue. A listing is in order of key."""
    here: QueueRef | None = None
    items: list[ListedObject] = []
    async for page in bucket.pages(""):
        for item in page:
            tenant, _, rest = item.key.partition("/")
            if tenant + "/" == layout.INTERNAL or (rest in ("tenant.json", "room.pb") and tenant in directory.tenants):
                continue
            if not rest.startswith("q/") or rest.count("/") < 2:
                findings.add(DamageKind.ENTRY_UNKNOWN, f"{item.key} is of no known kind")
                continue
            ref = QueueRef(tenant, rest.split("/", 2)[1])
            if ref != here:
                if here is not None:
                    yield here, items
                here, items = ref, []
            items.append(item)
    if here is not None:
        yield here, items


async def _guard(findings: Findings, what: str, check: Callable[[], Awaitable[None]]) -> None:
    """Run a check. A damaged document ends this check only."""
    try:
        await check()
    except StoreUnavailable as error:
        findings.add(DamageKind.STORE_UNREADABLE, f"{what} cannot be checked to the end: {error}")
