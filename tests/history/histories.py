"""Histories written by hand, a call at a time."""

from tests.machinery.history import (
    Claim,
    Claimed,
    Delivered,
    Drained,
    Enqueue,
    Enqueued,
    Item,
    Line,
    Settle,
    Settled,
    check,
)

Q = "acme/mail"


def enqueue(n: int, ids: list[int], **options: object) -> list[Line]:
    items = [Item(payload=f"p{id}", **options) for id in ids]
    return [Enqueue(n=n, queue=Q, items=items), Enqueued(n=n, ids=ids)]


def claim(n: int, at: int, *deliveries: Delivered, queue: str = Q) -> list[Line]:
    return [Claim(n=n, queue=queue), Claimed(n=n, at=at, deliveries=list(deliveries))]


def delivered(id: int, version: int, expires_at: int = 100, **other: object) -> Delivered:
    fields = {"payload": f"p{id}", "attempt": version, **other}
    return Delivered(id=id, version=version, expires_at=expires_at, **fields)


def settle(
    n: int, at: int, verb: str, *leases: tuple[int, int], ok: bool = True, until: int | None = None
) -> list[Line]:
    return [
        Settle(n=n, at=at, queue=Q, verb=verb, leases=list(leases)),
        Settled(n=n, ok=[ok] * len(leases), expires_at=[until] * len(leases)),
    ]


def rules_broken(*parts: list[Line]) -> set[str]:
    lines = [line for part in parts for line in part]
    return {violation.rule for violation in check([*lines, Drained()]).violations}


def broken(*parts: list[Line]) -> set[str]:
    """Return the broken rules, where faults are allowed."""
    lines = [line for part in parts for line in part]
    return {violation.rule for violation in check([*lines, Drained()], allow_refusals=True).violations}
