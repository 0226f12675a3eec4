"""Check the order of FIFO groups: of each, the head alone is claimable, and nothing while a message is in flight."""

from dataclasses import dataclass
from typing import Any

from holdfast.model.ids import to_bytes
from holdfast.model.invariants.damage import DamageKind
from holdfast.stores.findings import Findings
from holdfast.stores.postgres.schema.rows import BEHIND, IN_FLIGHT
from holdfast.stores.postgres.verify.directory_check import DatabaseDirectory
from holdfast.stores.postgres.verify.snapshots import Snapshot

_GROUPED = """
SELECT queue_key, group_name, id, status FROM items
WHERE group_name IS NOT NULL AND status IN (0, 1, 4, 5) ORDER BY queue_key, group_name, id
"""


@dataclass(slots=True)
class _Group:
    """One group as far as it was read, in the order of ids."""

    key: int
    name: str
    in_flight: int = 0
    # The oldest waiting message, and whether it is claimable.
    head: int | None = None
    is_head_shown: bool = False
    # The first other message that is claimable.
    shown: int | None = None

    def add(self, id: int, status: int) -> None:
        """Add the next message."""
        if status == IN_FLIGHT:
            self.in_flight += 1
        elif self.head is None:
            self.head, self.is_head_shown = id, status != BEHIND
        elif status != BEHIND and self.shown is None:
            self.shown = id


async def check_groups(snapshot: Snapshot, directory: DatabaseDirectory, findings: Findings) -> None:
    """Check all groups, as `holdfast.model.rules.claims.group_head` says which message of a group claims can see."""
    group: _Group | None = None
    async for row in snapshot.rows(_GROUPED):
        if group is None or (group.key, group.name) != (row["queue_key"], row["group_name"]):
            _judge(group, directory, findings)
            group = _Group(row["queue_key"], row["group_name"])
        group.add(row["id"], row["status"])
    _judge(group, directory, findings)


def _judge(group: _Group | None, directory: DatabaseDirectory, findings: Findings) -> None:
    if group is None or group.head is None or group.key in directory.partial:
        return
    title: Any = directory.title(group.key)
    if group.in_flight:
        shown = group.head if group.is_head_shown else group.shown
        if shown is not None:
            what = f"is claimable, although its group {group.name!r} has {group.in_flight} messages in flight"
            findings.add(DamageKind.GROUP_IN_FLIGHT, what, title, to_bytes(shown))
        return
    if not group.is_head_shown:
        what = f"is the head of its group {group.name!r}, but not claimable: the group stands still"
        findings.add(DamageKind.INDEX_MISSING, what, title, to_bytes(group.head))
    if group.shown is not None:
        what = f"is claimable before the head of its group {group.name!r}"
        findings.add(DamageKind.GROUP_ORDER, what, title, to_bytes(group.shown))
