"""Checks of tenants, queues and their numbers, and of what is the store's own."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import node_of
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Findings
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import NodeBody, RoomBody, StepBody
from holdfast.stores.objects.documents.json_documents import (
    JournalDocument,
    P,
    QueueDocument,
    TenantDocument,
    TenantsDocument,
)
from holdfast.stores.objects.verify.reader import VerifyReader

_OWN_PAPERS = (layout.TENANTS, layout.JOURNAL_HEAD)


@dataclass(slots=True)
class DirectoryFound:
    tenants: set[str] = field(default_factory=set)
    queues: set[QueueRef] = field(default_factory=set)
    # Names that stand for no queue any more, or not yet.
    others: set[QueueRef] = field(default_factory=set)
    # Queues that their tenant lists, without a policy: being made when their maker died, or damaged.
    without_policy: set[QueueRef] = field(default_factory=set)
    emptied_upto: int = 0
    has_journal_head: bool = False


async def read_directory(looking: VerifyReader, findings: Findings) -> DirectoryFound:
    found = DirectoryFound()
    numbers = await _read(looking, layout.TENANTS, TenantsDocument, findings)
    head = await _read(looking, layout.JOURNAL_HEAD, JournalDocument, findings)
    found.emptied_upto = 0 if head is None else head.emptied_upto
    found.has_journal_head = head is not None
    tenants = {} if numbers is None else numbers.tenants
    for number, times in Counter(tenants.values()).items():
        if times > 1:
            names = ", ".join(sorted(name for name, each in tenants.items() if each == number))
            findings.add(f"tenants {names} share number {number}")
    found.tenants = set(tenants)
    for name in sorted(tenants):
        await _read_tenant(looking, name, tenants[name], found, findings)
    findings.totals["tenants"] = len(tenants)
    findings.totals["queues"] = len(found.queues)
    return found


async def _read(looking: VerifyReader, key: str, kind: type[P], findings: Findings) -> P | None:
    try:
        return await looking.paper(key, kind)
    except StoreUnavailable as error:
        findings.add(error.message)
        return None


async def _read_tenant(
    looking: VerifyReader, name: str, number: int, found: DirectoryFound, findings: Findings
) -> None:
    tenant = await _read(looking, layout.tenant(name), TenantDocument, findings)
    if tenant is None:
        findings.totals["leftovers"] += 1  # its number is taken, and whoever made it died: the next to make it has it
        if await looking.is_there(layout.room(name)) and not await looking.is_there(layout.tenant(name)):
            findings.add(f"{layout.tenant(name)} is missing, but the tenant had quotas: {layout.room(name)}")
        return
    try:
        await _check_sheet(looking, layout.room(name), RoomBody)
    except StoreUnavailable as error:
        findings.add(error.message)
    if tenant.tenant_id != number:
        findings.add(f"tenant {name} has number {tenant.tenant_id} of its own, and {number} in the list of all")
    for given, times in Counter(tenant.queues.values()).items():
        if times > 1:
            names = ", ".join(sorted(queue for queue, each in tenant.queues.items() if each == given))
            findings.add(f"queues {names} of tenant {name} share number {given}")
        if given >= tenant.next_queue_id:
            findings.add(f"tenant {name} would give number {given} to another queue as well")
    for queue, given in sorted(tenant.queues.items()):
        ref = QueueRef(name, queue)
        paper = await _read(looking, layout.policy(ref), QueueDocument, findings)
        if paper is None or paper.is_deleted:
            # Made or deleted half way: the next to make it, or the next sweep, goes on.
            findings.totals["leftovers"] += 1
            (found.without_policy if paper is None else found.others).add(ref)
            continue
        if paper.queue_id != given:
            findings.add(f"its policy has number {paper.queue_id}, its tenant's list {given}", ref)
        found.queues.add(ref)


async def check_unlisted(
    looking: VerifyReader, ref: QueueRef, items: Sequence[ListedObject], findings: Findings
) -> None:
    """Of a place that no tenant lists as a queue: nothing lies there but the paper of one that was deleted."""
    paper = await _read(looking, layout.policy(ref), QueueDocument, findings)
    if paper is not None and not paper.is_deleted:
        findings.add("has a policy, but its tenant does not list it", ref)
    rest = [item.key for item in items if item.key != layout.policy(ref)]
    still = [key for key in rest[:100] if await looking.is_there(key)]
    if still:
        findings.add(f"is no queue, but {len(rest)} objects lie there: {still[0]} is the first", ref)


async def check_policy(looking: VerifyReader, ref: QueueRef, evidence: str, findings: Findings) -> bool:
    """Report the lost policy of a listed queue, and return whether it was lost.

    A policy is written before anything else of a queue and is never deleted, so any other object proves it existed.
    """
    if await looking.is_there(layout.policy(ref)):
        return False  # damaged, which is told already, or made meanwhile
    findings.add(f"its policy is missing: {layout.policy(ref)}; {evidence}", ref)
    return True


async def check_nodes(looking: VerifyReader, ids: Iterable[int], findings: Findings) -> None:
    """A node number stays on record after its process: else another process could make the same ids."""
    for number in sorted({node_of(id) for id in ids}):
        if not await looking.is_there(layout.node(number)):
            findings.add(f"{layout.node(number)} is missing, but there are messages whose ids have this node number")


async def check_own(looking: VerifyReader, items: Sequence[ListedObject], findings: Findings) -> None:
    """Node numbers and steps can be read; a step that is decided waits for its end."""

    async def check(item: ListedObject) -> None:
        try:
            if item.key.startswith(layout.JOURNAL) or item.key in _OWN_PAPERS:
                return
            if item.key.startswith(layout.NODES):
                await _check_sheet(looking, item.key, NodeBody)
            elif item.key.startswith(layout.STEPS):
                await _check_sheet(looking, item.key, StepBody)
                findings.totals["leftovers"] += 1
            else:
                findings.add(f"{item.key} is of no known kind")
        except StoreUnavailable as error:
            findings.add(error.message)

    await looking.each(items, check)


async def _check_sheet(looking: VerifyReader, key: str, kind: type) -> None:
    body = await looking.sheet(key)
    if body is None:
        return
    try:
        msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"{key} is damaged: {error}") from None
