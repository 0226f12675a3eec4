"""The change of a message that a verdict or a bulk verb makes."""

from collections.abc import Callable
from typing import Final

from holdfast.model.message import Envelope
from holdfast.model.policy import QueuePolicy
from holdfast.model.requests import Cancel, Move, Purge, Redrive, Remove, Reprioritise, Settle, Verb, Verdict
from holdfast.model.rules import lifecycle
from holdfast.model.rules.lifecycle import Change, Life

# Looking a member up in its class costs as much as the rest of the decision, and most verdicts are acks.
_ACK: Final = Settle.ACK


def apply_verdict(
    life: Life, envelope: Envelope, verdict: Verdict, policy: QueuePolicy, now_ms: int, roll: Callable[[], float]
) -> Change:
    """Return the change that a verdict makes. The caller has checked that the receipt holds the message.

    `roll` returns a random number in [0, 1), for the delay of a retry.
    """
    if verdict.settle is _ACK:
        return lifecycle.ack(life, policy, now_ms)
    match verdict.settle:
        case Settle.NACK if verdict.defer:
            return lifecycle.defer(life, policy, now_ms, error=verdict.error, delay_ms=verdict.delay_ms)
        case Settle.NACK:
            return lifecycle.nack(
                life,
                envelope,
                policy,
                now_ms,
                error=verdict.error,
                delay_ms=verdict.delay_ms,
                final=verdict.final,
                exhausted=verdict.exhausted,
                roll=roll(),
            )
        case Settle.RELEASE:
            return lifecycle.release(life, policy, now_ms)
        case Settle.UNSEND:
            return lifecycle.unsend(life, policy, now_ms)
        case Settle.EXTEND:
            return lifecycle.extend(life, policy, now_ms, verdict.lease_ms)
        case Settle.REMOVE:
            return lifecycle.remove(life, "removed")


def apply_verb(life: Life, envelope: Envelope, verb: Verb, default_ttl_ms: int | None, now_ms: int) -> Change:
    """Return the change that a bulk verb makes to a message that matches."""
    match verb:
        case Purge():
            return lifecycle.remove(life, "purged")
        case Cancel():
            return lifecycle.remove(life, "cancelled")
        case Remove():
            return lifecycle.remove(life, "removed")
        case Reprioritise(priority=priority):
            return lifecycle.reprioritise(life, priority)
        case Redrive():
            return lifecycle.redrive(life, envelope, default_ttl_ms, now_ms)
        case Move():
            return lifecycle.move(life)
