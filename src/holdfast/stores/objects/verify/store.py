"""Every rule of the layout (layout.py), checked against a full listing; nothing is written, not even a step's end.

Processes may be at work meanwhile. So what a first look finds wrong is looked at once more after a while, and only what
both find the same way is a violation. What a crash leaves is none: it is counted as left for the next sweep.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from holdfast.clock import SystemClock
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Findings, Progress, Report
from holdfast.stores.objects.buckets.bucket import Bucket, ListedObject, Unanswered
from holdfast.stores.objects.buckets.bucket_url import make_bucket
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.verify.directory import (
    DirectoryFound,
    check_nodes,
    check_own,
    check_policy,
    check_unlisted,
    read_directory,
)
from holdfast.stores.objects.verify.journal import check_journal
from holdfast.stores.objects.verify.queue import ObjectQueueCheck
from holdfast.stores.objects.verify.reader import VerifyReader

# Between two looks at what seems wrong: a change that was under way is through by then.
PAUSE_S = 1.0


def verify(url: str, progress: Progress | None = None) -> Report:
    """Check an object store by its URL; `StoreUnavailable` if it does not answer."""
    bucket = make_bucket(url, syncs=False)
    return asyncio.run(verify_bucket(bucket, SystemClock().now_ms(), progress))


async def verify_bucket(
    bucket: Bucket, now_ms: int, progress: Progress | None = None, *, pause_s: float = PAUSE_S
) -> Report:
    looking, findings = VerifyReader(bucket, now_ms), Findings(progress)
    try:
        await _check(looking, findings, pause_s)
    except Unanswered as error:
        raise StoreUnavailable(f"{bucket.url} does not answer: {error}") from None
    finally:
        await bucket.close()
    return findings.report(bucket.url)


async def _check(looking: VerifyReader, findings: Findings, pause_s: float) -> None:
    own = [item async for page in looking.bucket.pages(layout.OWN) for item in page]
    if not own:
        raise InvalidArgument(f"{looking.bucket.url} holds no store: give what `holdfast.open` was given", field="url")
    directory = await read_directory(looking, findings)
    await _guard(findings, "what is the store's own", lambda: check_own(looking, own, findings))
    check = ObjectQueueCheck(looking, findings, pause_s)

    async def check_place(ref: QueueRef, items: list[ListedObject]) -> None:
        if ref in directory.without_policy:
            evidence = f"{len(items)} objects lie there, {items[0].key} is the first"
            if await check_policy(looking, ref, evidence, findings):
                directory.without_policy.discard(ref)
                await check.run(ref, items)
        elif ref in directory.queues:
            await check.run(ref, items)
        elif ref not in directory.others:
            await check_unlisted(looking, ref, items, findings)

    async for ref, items in _places(looking.bucket, directory, findings):
        await _guard(findings, f"queue {ref}", partial(check_place, ref, items))
    await _guard(findings, "the node numbers", lambda: check_nodes(looking, check.found, findings))
    journal = partial(check_journal, looking, check.found, directory, findings, pause_s)
    await _guard(findings, "the journal", journal)


async def _places(
    bucket: Bucket, directory: DirectoryFound, findings: Findings
) -> AsyncIterator[tuple[QueueRef, list[ListedObject]]]:
    """Everything by queue: a listing comes in the order of keys."""
    here: QueueRef | None = None
    items: list[ListedObject] = []
    async for page in bucket.pages(""):
        for item in page:
            tenant, _, rest = item.key.partition("/")
            if tenant + "/" == layout.OWN or (rest in ("tenant.json", "room.pb") and tenant in directory.tenants):
                continue
            if not rest.startswith("q/") or rest.count("/") < 2:
                findings.add(f"{item.key} is of no known kind")
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
    """A damaged document ends one check, not all of them."""
    try:
        await check()
    except StoreUnavailable as error:
        findings.add(f"{what} cannot be read to the end: {error}")
