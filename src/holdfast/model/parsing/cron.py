"""Cron lines: which there are, and when each one's ticks fall.

A line goes by the wall clock of its time zone, and around changes of the clocks by Debian cron's rules, which `cronsim`
has: a line with fixed hours that falls into the hour that is left out runs at its end, and into the hour that comes
twice, the first time; a line whose minute or hour begins with a star goes on as the hours really pass.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache

from holdfast.model.errors import InvalidArgument

MAX_LINE = 256
MAX_ZONE = 64
_ZONE = re.compile(rf"[A-Za-z][A-Za-z0-9_+/-]{{0,{MAX_ZONE - 1}}}")
# What these mean is up to the machine: another server's ticks would be others.
_OWN_ZONES = frozenset({"localtime", "posixrules"})

_HOUR_MS = 3_600_000
# Looking back for the latest tick: by so many hours, then by so many times more.
_WIDER = 24
# In the hour that comes twice the library names ticks of its first time: more than there are minutes in it.
_MOST_PAST = 1_000


def parse_line(value: object) -> str:
    """A cron line of five fields, with single spaces. `InvalidArgument` for one that is none, or that never comes."""
    if not isinstance(value, str) or len(value) > MAX_LINE or not value.isascii():
        raise _bad_line(value, f"give five fields in at most {MAX_LINE} characters")
    line = " ".join(value.split())
    if len(line.split()) != 5:
        raise _bad_line(value, "give five fields: minute, hour, day of month, month, day of week")
    # Imported here, as everywhere in this file: every client imports it for the shape of a schedule, and few have one.
    from cronsim import CronSim, CronSimError

    try:
        simulated = CronSim(line, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        # "Bad minute", say; so are days that none of the months has.
        raise _bad_line(value, str(error).lower()) from None
    if next(simulated, None) is None:
        raise _bad_line(value, "no day will ever match it")
    return line


def parse_zone(value: object) -> str:
    if isinstance(value, str) and _ZONE.fullmatch(value) and value not in _OWN_ZONES:
        _zone(value)
        return value
    raise _no_zone(value)


def next_tick(line: str, zone: str, after_ms: int) -> int | None:
    """The first tick behind `after_ms`; None: there is none within 50 years."""
    return next(_ticks(line, zone, after_ms), None)


def latest_tick(line: str, zone: str, first_ms: int, now_ms: int) -> int:
    """The last tick up to now, of those from the tick `first_ms` on.

    Looked for forwards from ever earlier, so that neither years of missed minutes nor a line that seldom comes take
    long; and a tick is only ever what `next_tick` would have said.
    """
    back_ms = _HOUR_MS
    while now_ms - back_ms > first_ms:
        latest = None
        for tick in _ticks(line, zone, now_ms - back_ms):
            if tick > now_ms:
                break
            latest = tick
        if latest is not None:
            return latest
        back_ms *= _WIDER
    latest = first_ms
    for tick in _ticks(line, zone, first_ms):
        if tick > now_ms:
            break
        latest = tick
    return latest


def _ticks(line: str, zone: str, after_ms: int) -> Iterator[int]:
    from cronsim import CronSim, CronSimError

    start = datetime.fromtimestamp(after_ms // 1_000, _zone(zone))
    try:
        simulated = CronSim(line, start)
    except CronSimError as error:  # it was one to the version that took it
        raise _bad_line(line, str(error).lower()) from None
    last_ms = after_ms
    past = 0
    for tick in simulated:
        tick_ms = int(tick.timestamp()) * 1_000
        if tick_ms > last_ms:
            last_ms = tick_ms
            yield tick_ms
        elif (past := past + 1) > _MOST_PAST:
            return


@lru_cache(maxsize=1_024)
def _zone(name: str) -> tzinfo:
    """Rules of a zone are files, read once. What was known when a schedule was put may be so no more."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise _no_zone(name) from None


def _no_zone(value: object) -> InvalidArgument:
    return InvalidArgument(
        f"timezone {str(value)[:80]!r} is not known: give a name like UTC or Europe/Berlin", field="timezone"
    )


def _bad_line(value: object, why: str) -> InvalidArgument:
    return InvalidArgument(f"{str(value)[:80]!r} is not a cron line: {why}", field="cron")
