"""Check tenants, queues and their numbers, and the store's internal documents."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import node_of
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.invariants.side_records import check_config, check_policy
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Findings
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import NodeBody, QuotaGuardBody, StepBody
from holdfast.stores.objects.documents.json_documents import (
    JournalDocument,
    P,
    QueueDocument,
    TenantDocument,
    TenantsDocument,
)
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, DamagedBody
from holdfast.stores.objects.verify.reader import VerifyReader

_JSON_KEYS = (layout.TENANTS, layout.JOURNAL_HEAD)


@dataclass(slots=True)
class DirectoryFound:
    """The tenants and queues of a store."""

    tenants: set[str] = field(default_factory=set)
    queues: set[QueueRef] = field(default_factory=set)
    # Queues that are deleted, or not created yet.
    others: set[QueueRef] = field(default_factory=set)
    # Queues that their tenant lists, without a policy: their creation was interrupted, or the policy is lost.
    without_policy: set[QueueRef] = field(default_factory=set)
    emptied_upto: int = 0
    has_journal_head: bool = False


async def read_directory(reader: VerifyReader, findings: Findings) -> DirectoryFound:
    """Read and check all tenants and their queues."""
    found = DirectoryFound()
    numbers = await _read(reader, layout.TENANTS, TenantsDocument, DamageKind.STORE_UNREADABLE, findings)
    head = await _read(reader, layout.JOURNAL_HEAD, JournalDocument, DamageKind.JOURNAL_UNREADABLE, findings)
    found.emptied_upto = 0 if head is None else head.emptied_upto
    found.has_journal_head = head is not None
    tenants = {} if numbers is None else numbers.tenants
    for number, times in Counter(tenants.values()).items():
        if times > 1:
            names = ", ".join(sorted(name for name, each in tenants.items() if each == number))
            findings.add(DamageKind.NUMBER_SHARED, f"tenants {names} share number {number}")
    found.tenants = set(tenants)
    for name in sorted(tenants):
        await _read_tenant(reader, name, tenants[name], found, findings)
    findings.totals["tenants"] = len(tenants)
    findings.totals["queues"] = len(found.queues)
    return found


async def _read(reader: VerifyReader, key: str, kind: type[P], damage: DamageKind, findings: Findings) -> P | None:
    try:
        return await reader.read_json(key, kind)
    except StoreUnavailable as error:
        findings.add(damage, error.message)
        return None


async def _read_tenant(reader: VerifyReader, name: str, number: int, found: DirectoryFound, findings: Findings) -> None:
    tenant = await _read(reader, layout.tenant(name), TenantDocument, DamageKind.TENANT_UNREADABLE, findings)
    if tenant is None:
        findings.totals["leftovers"] += 1  # an interrupted creation; the next one uses the number
        if await reader.is_there(layout.quota_guard(name)) and not await reader.is_there(layout.tenant(name)):
            findings.add(
                DamageKind.TENANT_LOST,
                f"{layout.tenant(name)} is missing, but the tenant had quotas: {layout.quota_guard(name)}",
            )
        return
    try:
        await _check_document(reader, layout.quota_guard(name), QuotaGuardBody)
    except StoreUnavailable as error:
        findings.add(DamageKind.TENANT_UNREADABLE, error.message)
    findings.add_all(check_config(name, tenant.config))
    if tenant.tenant_id != number:
        findings.add(
            DamageKind.NUMBER_SHARED,
            f"tenant {name} has number {tenant.tenant_id}, but {number} in the list of tenants",
        )
    for given, times in Counter(tenant.queues.values()).items():
        if times > 1:
            names = ", ".join(sorted(queue for queue, each in tenant.queues.items() if each == given))
            findings.add(DamageKind.NUMBER_SHARED, f"queues {names} of tenant {name} share number {given}")
        if given >= tenant.next_queue_id:
            findings.add(
                DamageKind.NUMBER_REUSABLE, f"tenant {name} would assign number {given} to another queue as well"
            )
    for queue, given in sorted(tenant.queues.items()):
        ref = QueueRef(name, queue)
        document = await _read(reader, layout.policy(ref), QueueDocument, DamageKind.QUEUE_UNREADABLE, findings)
        if document is None or document.is_deleted:
            # Created or deleted half way: the next creation, or the next sweep, continues.
            findings.totals["leftovers"] += 1
            (found.without_policy if document is None else found.others).add(ref)
            continue
        findings.add_all(check_policy(document.policy), ref)
        if document.queue_id != given:
            findings.add(
                DamageKind.NUMBER_SHARED,
                f"its policy has number {document.queue_id}, but its tenant's list has {given}",
                ref,
            )
        found.queues.add(ref)


async def check_unlisted(
    reader: VerifyReader, ref: QueueRef, items: Sequence[ListedObject], findings: Findings
) -> None:
    """Check a prefix that no tenant lists as a queue: only the policy of a deleted queue may exist there."""
    document = await _read(reader, layout.policy(ref), QueueDocument, DamageKind.QUEUE_UNREADABLE, findings)
    if document is not None and not document.is_deleted:
        findings.add(DamageKind.QUEUE_UNLISTED, "has a policy, but its tenant does not list it", ref)
    rest = [item.key for item in items if item.key != layout.policy(ref)]
    still = [key for key in rest[:100] if await reader.is_there(key)]
    if still:
        findings.add(
            DamageKind.QUEUE_UNKNOWN, f"is not a queue, but {len(rest)} objects have its prefix, first {still[0]}", ref
        )


async def report_lost_policy(reader: VerifyReader, ref: QueueRef, evidence: str, findings: Findings) -> bool:
    """Report the lost policy of a listed queue, and return whether it was lost.

    A policy is written before any other object of a queue and is never deleted, so any other object proves it existed.
    """
    if await reader.is_there(layout.policy(ref)):
        return False  # damaged, which is already reported, or created meanwhile
    findings.add(DamageKind.POLICY_LOST, f"its policy is missing: {layout.policy(ref)}; {evidence}", ref)
    return True


async def check_nodes(reader: VerifyReader, ids: Iterable[int], findings: Findings) -> None:
    """Check that the node number of each id has a document. Without it, another process could make the same ids."""
    for number in sorted({node_of(id) for id in ids}):
        if not await reader.is_there(layout.node(number)):
            findings.add(
                DamageKind.NODE_LOST,
                f"{layout.node(number)} is missing, but there are messages whose ids have this node number",
            )


async def check_internal(reader: VerifyReader, items: Sequence[ListedObject], findings: Findings) -> None:
    """Check that node numbers and steps can be read. A step's record is a leftover until it is finished."""

    async def check(item: ListedObject) -> None:
        try:
            if item.key.startswith(layout.JOURNAL) or item.key in _JSON_KEYS:
                return
            if item.key.startswith(layout.NODES):
                await _check_document(reader, item.key, NodeBody)
            elif item.key.startswith(layout.STEPS):
                await _check_document(reader, item.key, StepBody)
                findings.totals["leftovers"] += 1
            else:
                findings.add(DamageKind.ENTRY_UNKNOWN, f"{item.key} is of no known kind")
        except StoreUnavailable as error:
            findings.add(DamageKind.STORE_UNREADABLE, error.message)

    await reader.each(items, check)


async def _check_document(reader: VerifyReader, key: str, kind: type) -> None:
    body = await reader.read_document(key)
    if body is None:
        return
    try:
        BodyDecoder(kind)(body)
    except DamagedBody as error:
        raise StoreUnavailable(f"{key} is damaged: {error}") from None
