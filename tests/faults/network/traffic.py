"""Producers and consumers that do everything a client can, and write down what they asked and were answered."""

import itertools
import random
from collections import deque
from typing import Any

from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import HoldfastError
from holdfast.model.message import NewMessage, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from tests.machinery import history as h
from tests.machinery.history.recording import AsyncCaller
from tests.machinery.history.scripts import Recorder, digest, is_unknown
from tests.waiting import until

QUEUES = ["acme/mail", "acme/pay", "zeta/mail"]
GROUPS = ["a", "b", "c"]
LEASES_MS = [100, 200, 400]
# Producers wait when more than this lies in the queues: a drain must come to its end.
BACKLOG = 150
# What a consumer does with a message, by weight.
ACTS = ["ack"] * 8 + ["ride"] * 6 + ["nack", "final", "release", "defer", "extend", "extend", "forget"]
RIDES = {"ack": Settle.ACK, "nack": Settle.NACK, "release": Settle.RELEASE}


def payload_of(name: str) -> bytes:
    """The one payload of this name; a few are larger than one read of a socket."""
    dice = random.Random(name)
    return name.encode() + bytes(100_000 if dice.random() < 0.005 else dice.choice([0, 50, 500]))


def _verdict(verb: str, receipt: Receipt) -> Verdict:
    if verb == "nack":
        return Verdict(settle=Settle.NACK, receipt=receipt, error="failed", delay_ms=0)
    return Verdict(settle=RIDES[verb], receipt=receipt)


class Client:
    """One connection's callers: any number of producers and consumers share it."""

    def __init__(self, hf: AsyncHoldfast, recorder: Recorder, name: str, traffic: "Traffic") -> None:
        self._hf = hf
        self._recorder = recorder
        self._calls = AsyncCaller(hf, recorder)
        self._name = name
        self._traffic = traffic

    async def produce(self) -> None:
        dice = random.Random(f"{self._name} producer")
        for number in itertools.count():
            await until(lambda: self._traffic.backlog <= BACKLOG)
            queue = dice.choice(QUEUES)
            messages = [
                self._message(dice, queue, f"{queue} {self._name} {number} {index}")
                for index in range(dice.choice([1, 1, 1, 1, 3]))
            ]
            self._traffic.backlog += len(messages)
            await self._calls.enqueue(queue, messages)

    def _message(self, dice: random.Random, queue: str, name: str) -> NewMessage:
        options: dict[str, Any] = {"max_retries": dice.choice([h.ENDLESS, h.ENDLESS, 3])}
        kind = dice.random()
        if kind < 0.45:
            # The same keys come again, from other clients too: whoever lost an answer asks once more.
            options.update(key=f"{dice.randrange(self._traffic.keys_upto())}", max_retries=h.ENDLESS)
            name = f"{queue} key {options['key']}"
        elif kind < 0.6:
            options.update(group=dice.choice(GROUPS), max_retries=h.ENDLESS)
        if dice.random() < 0.1:
            options["delay"] = f"{dice.randrange(1, 50)}ms"
        return NewMessage(payload_of(name), **options)

    async def consume(self, number: int) -> None:
        dice = random.Random(f"{self._name} consumer {number}")
        riders: list[tuple[str, str]] = []
        queue = dice.choice(QUEUES)
        while True:
            if riders:
                deliveries = await self._exchange(queue, riders, dice)
            else:
                queue = dice.choice(QUEUES)
                deliveries = await self._calls.claim(
                    queue, dice.choice([1, 1, 3]), lease_ms=dice.choice(LEASES_MS), wait_ms=dice.choice([0, 20])
                )
            riders = []
            for each in deliveries:
                match dice.choice(ACTS):
                    case "ride":
                        riders.append((dice.choice(["ack", "ack", "ack", "nack", "release"]), each.receipt))
                    case act:
                        await self._act(dice, queue, act, each.receipt)
                        self._traffic.left.append((queue, each.receipt))
            if dice.random() < 0.1 and self._traffic.left:
                # Not a nack: a client that lost its answer believes it where the message has this error already.
                await self._settle(*self._traffic.left.popleft(), dice.choice(["ack", "release", "extend"]))

    async def _act(self, dice: random.Random, queue: str, act: str, receipt: str) -> None:
        match act:
            case "forget":
                pass
            case "extend":
                await self._settle(queue, receipt, "extend", lease=f"{dice.choice(LEASES_MS)}ms")
                await self._settle(queue, receipt, "ack")
            case "nack" | "defer":
                await self._settle(queue, receipt, act, delay=f"{dice.choice([0, 0, 20])}ms")
            case _:
                await self._settle(queue, receipt, act)

    async def _settle(self, queue: str, receipt: str, verb: str, **options: Any) -> None:
        ok = await self._calls.settle(queue, verb, [receipt], **options)
        self._traffic.backlog -= sum(ok) if verb in ("ack", "final") else 0

    async def _exchange(self, queue: str, riders: list[tuple[str, str]], dice: random.Random) -> list[h.Delivered]:
        """Verdicts that ride on a claim, as a worker sends them. The history has them as calls made at once."""
        recorder, now_ms = self._recorder, self._recorder.now_ms
        claim = recorder.number()
        calls = [(recorder.number(), verb, Receipt.parse(receipt)) for verb, receipt in riders]
        for n, verb, receipt in calls:
            leases = [(receipt.id, receipt.version)]
            recorder.say(h.Settle(n=n, at=now_ms(), queue=queue, verb=verb, leases=leases))
        recorder.say(h.Claim(n=claim, queue=queue))
        tenant, _, name = queue.partition("/")
        verdicts = [_verdict(verb, receipt) for _, verb, receipt in calls]
        ask = ClaimRequest(limit=dice.choice([1, 3]), lease_ms=dice.choice(LEASES_MS))
        try:
            answer = await self._hf._connected().messages.exchange(QueueRef(tenant, name), verdicts, ask)
        except HoldfastError as error:
            for n in (*(n for n, _, _ in calls), claim):
                line = h.Unknown if is_unknown(error) else h.Refused
                recorder.say(line(n=n, error=f"{error.code}: {error}"))
            return []
        for (n, verb, _), result in zip(calls, answer.results, strict=True):
            unsure = [True] if result.is_unsure else []
            recorder.say(h.Settled(n=n, ok=[result.ok], unsure=unsure, at=now_ms()))
            self._traffic.backlog -= verb == "ack" and result.ok
        deliveries = [
            h.Delivered(
                id=each.receipt.id,
                version=each.receipt.version,
                attempt=each.attempt,
                payload=digest(each.payload),
                expires_at=each.lease_expires_at,
                group=each.group,
                receipt=str(each.receipt),
            )
            for each in answer.deliveries
        ]
        recorder.say(h.Claimed(n=claim, at=now_ms(), deliveries=deliveries))
        return deliveries


class Traffic:
    """The state that the clients of one run share."""

    def __init__(self) -> None:
        # Roughly: it only keeps the producers from running away.
        self.backlog = 0
        # Receipts that their holders are done with, settled or not: each is used once more, late.
        self.left: deque[tuple[str, str]] = deque(maxlen=50)
        self._keys = 20

    def keys_upto(self) -> int:
        self._keys += 1
        return self._keys
