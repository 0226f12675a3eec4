"""Cron lines: check a line, and find its ticks.

A line follows the local time of its time zone. At daylight saving changes `cronsim` applies the rules of Debian's
cron. A tick of a line with fixed hours that falls into the skipped hour runs at the end of that hour; one that falls
into the repeated hour runs the first time only. A line whose minute or hour begins with a star runs in each hour that
passes.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache

from holdfast.model.errors import InvalidArgument

MAX_LINE = 256
MAX_ZONE = 64
_ZONE = re.compile(rf"[A-Za-z][A-Za-z0-9_+/-]{{0,{MAX_ZONE - 1}}}")
# These depend on the configuration of the machine, so that servers could disagree about the ticks.
_LOCAL_ZONES = frozenset({"localtime", "posixrules"})

_HOUR_MS = 3_600_000
# The factor by which each further look back for the latest tick is longer. The first one is one hour.
_LOOK_BACK_FACTOR = 24
# In the repeated hour the library also yields ticks of the first pass, at most one per minute. More than this number of
# ticks in the past means that it makes no progress.
_MAX_PAST_TICKS = 1_000


def parse_line(value: object) -> str:
    """Return a cron line of five fields, separated by single spaces.

    Raise `InvalidArgument` for text that is not a cron line, or for a line that no day ever matches.
    """
    if not isinstance(value, str) or len(value) > MAX_LINE or not value.isascii():
        raise _bad_line(value, f"give five fields in at most {MAX_LINE} characters")
    line = " ".join(value.split())
    if len(line.split()) != 5:
        raise _bad_line(value, "give five fields: minute, hour, day of month, month, day of week")
    # Every client imports this module with the schedule structs, but few use it, so `cronsim` is imported when used.
    from cronsim import CronSim, CronSimError

    try:
        simulated = CronSim(line, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        # The library's text, such as "Bad minute". It also refuses days that none of the months has.
        raise _bad_line(value, str(error).lower()) from None
    if next(simulated, None) is None:
        raise _bad_line(value, "no day ever matches it")
    return line


def parse_zone(value: object) -> str:
    """Return the name of a time zone, or raise `InvalidArgument` if this machine does not know it."""
    if isinstance(value, str) and _ZONE.fullmatch(value) and value not in _LOCAL_ZONES:
        _load_zone(value)
        return value
    raise _unknown_zone(value)


def next_tick(line: str, zone: str, after_ms: int) -> int | None:
    """Return the first tick after `after_ms`, or None if there is none within 50 years."""
    return next(_ticks(line, zone, after_ms), None)


def latest_tick(line: str, zone: str, first_ms: int, now_ms: int) -> int:
    """Return the latest tick at or before `now_ms`. `first_ms` is the first tick that may be returned.

    The search runs forwards from a start that moves back until it finds a tick. It is thus fast both after years of
    missed minutes and for a line that rarely ticks, and it finds the same ticks as `next_tick`.
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
        back_ms *= _LOOK_BACK_FACTOR
    latest = first_ms
    for tick in _ticks(line, zone, first_ms):
        if tick > now_ms:
            break
        latest = tick
    return latest


def _ticks(line: str, zone: str, after_ms: int) -> Iterator[int]:
    from cronsim import CronSim, CronSimError

    start = datetime.fromtimestamp(after_ms // 1_000, _load_zone(zone))
    try:
        simulated = CronSim(line, start)
    except CronSimError as error:  # another version of the library had accepted the stored line
        raise _bad_line(line, str(error).lower()) from None
    last_ms = after_ms
    past = 0
    for tick in simulated:
        tick_ms = int(tick.timestamp()) * 1_000
        if tick_ms > last_ms:
            last_ms = tick_ms
            yield tick_ms
        elif (past := past + 1) > _MAX_PAST_TICKS:
            return


@lru_cache(maxsize=1_024)
def _load_zone(name: str) -> tzinfo:
    """Return a time zone, read from its file once. A zone of a stored schedule may have been removed since."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise _unknown_zone(name) from None


def _unknown_zone(value: object) -> InvalidArgument:
    return InvalidArgument(
        f"timezone {str(value)[:80]!r} is not known: give a name like UTC or Europe/Berlin", field="timezone"
    )


def _bad_line(value: object, why: str) -> InvalidArgument:
    return InvalidArgument(f"{str(value)[:80]!r} is not a cron line: {why}", field="cron")
