"""What can be set, by name, with the defaults."""

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.dispatch.polling import default_max_consumers
from holdfast.model.durations import parse_duration_ms
from holdfast.model.errors import InvalidArgument

_DAY_MS = 24 * 3_600_000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an embedded core."""

    auto_create: bool = True
    max_payload: int = 1 << 20
    journal_retention_ms: int = 7 * _DAY_MS
    # "fsync": answered once it is on disk. "os": once the operating system has it. Of no meaning to memory://.
    durability: Literal["fsync", "os"] = "fsync"
    # Into how many shards the queues of a directory are numbered.
    shards: int = 1
    # Claims that may wait at once.
    queue_max_consumers: int = msgspec.field(default_factory=lambda: default_max_consumers(os.cpu_count() or 1))


_DURATIONS = frozenset({"journal_retention"})


def parse_settings(given: Mapping[str, Any]) -> Settings:
    """An unknown name or a wrong value is refused by its name."""
    fields: dict[str, Any] = {}
    known = {name.removesuffix("_ms") for name in Settings.__struct_fields__}
    for name, value in given.items():
        if name not in known:
            raise InvalidArgument(f"{name!r} is not a setting; the settings are {', '.join(sorted(known))}", field=name)
        fields[f"{name}_ms" if name in _DURATIONS else name] = (
            parse_duration_ms(name, value) if name in _DURATIONS else value
        )
    try:
        settings = msgspec.convert(fields, Settings)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"settings: {error}") from None
    for name in ("max_payload", "queue_max_consumers", "journal_retention_ms", "shards"):
        if getattr(settings, name) < 1:
            raise InvalidArgument(f"{name.removesuffix('_ms')} must be above 0", field=name.removesuffix("_ms"))
    return settings
