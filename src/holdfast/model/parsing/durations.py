"""Parse durations and instants into whole milliseconds."""

import math
import re
from datetime import datetime, timedelta

from holdfast.model.errors import InvalidArgument

# The longest duration. The sum of the time and a duration still fits into the 63 bits of a database column.
MAX_MS = 1 << 53

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)

Duration = float | str | timedelta
Instant = int | datetime


def parse_duration_ms(name: str, value: object) -> int:
    """Return a duration in milliseconds, from seconds, text such as `"30s"` (ms, s, m, h, d) or a timedelta.

    Fractions of a millisecond are rounded up. Raise `InvalidArgument` for anything else and for negative durations.
    """
    match value:
        case bool():
            ms = math.nan
        case int() | float():
            ms = value * 1_000
        case timedelta():
            ms = value / timedelta(milliseconds=1)
        case str() if written := _WRITTEN.fullmatch(value.strip()):
            ms = float(written[1]) * _UNITS_MS[written[2]]
        case _:
            ms = math.nan
    if not 0 <= ms <= MAX_MS:  # false for NaN too
        raise InvalidArgument(
            f'{name} {str(value)[:80]!r} is not a duration: give seconds (2.5), text ("500ms", "30s", "5m", '
            '"12h", "7d") or a timedelta, not negative',
            field=name,
        )
    if ms == (whole := int(ms)):
        return whole
    # Round up, because a wait must not be shorter than requested; but not because of the error of a binary fraction.
    return math.ceil(round(ms, 6)) or math.ceil(ms)


def parse_instant_ms(name: str, value: object) -> int:
    """Return an instant in milliseconds since 1970, from such a number or an aware datetime."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = int(value.timestamp() * 1_000)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_MS:
        return value
    raise InvalidArgument(
        f"{name} {str(value)[:80]!r} is not an instant: give whole milliseconds since 1970 or a datetime with a zone",
        field=name,
    )
