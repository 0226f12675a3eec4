"""A schedule in a simulated run: whatever crashes, a tick enqueues one message, and ticks continue."""

from holdfast.client.client import AsyncHoldfast
from holdfast.model.events import Event

_TENANT, _QUEUE, _NAME = "acme", "ticks", "heartbeat"
_PAGE = 10_000


async def begin(hf: AsyncHoldfast, every_ms: int) -> None:
    await hf.queue(_QUEUE, tenant=_TENANT).schedule(_NAME, every=f"{every_ms}ms", payload=b"tick")


async def check(hf: AsyncHoldfast, every_ms: int, now_ms: int) -> list[str]:
    """Return the errors in the ticks of the journal, if there was no fault for longer than a tick."""
    fired: dict[int, int] = {}
    position: str | None = None
    while events := await hf.journal(position, _PAGE, tenant=_TENANT):
        position = events.next
        for event in events:
            if event.queue == _QUEUE and event.event is Event.ENQUEUED:
                tick_at = int((event.reason or "").rpartition(" ")[2])
                fired[tick_at] = fired.get(tick_at, 0) + 1
    broken = [f"schedule: tick {tick_at} fired {times} times" for tick_at, times in fired.items() if times > 1]
    if max(fired, default=0) < now_ms - 2 * every_ms:
        broken.append(f"schedule: the last tick was {max(fired, default=0)}, and it is {now_ms}")
    return broken
