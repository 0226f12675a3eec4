"""`holdfast doctor`: what may be wrong here, and what to do about it."""

import os
import platform
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

import typer

from holdfast.cli.failures import REFUSED
from holdfast.cli.inspection.tail import start_of
from holdfast.cli.output import size
from holdfast.cli.server.probe import Probe, probe
from holdfast.cli.session import CommandSession
from holdfast.clock import SystemClock, steady_s
from holdfast.model.errors import HoldfastError, InvalidArgument, StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.extras import has_extra, install_command

OK, WARN, BAD = "ok", "warn", "bad"

_GIB = 1 << 30
_SLOW_FSYNC_MS = 20.0
_FSYNCS = 20
# An HTTP date has whole seconds.
_SKEW_WARN_S, _SKEW_BAD_S = 3.0, 60.0
_WATCH_S, _OFF_MS = 0.25, 20
_EVENTS = 2_000
# Each is a call of its own.
_MAX_TENANTS = 200
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Finding(NamedTuple):
    check: str
    status: str
    found: str
    advice: str = ""


def doctor(cli: CommandSession) -> None:
    """Check versions, settings, the clock, the disk, and the server or store. Exit code 4: something is wrong."""
    findings = list(_examine(cli))
    cli.output.rows(each._asdict() for each in findings)
    if any(each.status == BAD for each in findings):
        raise typer.Exit(REFUSED)


def _examine(cli: CommandSession) -> Iterator[Finding]:
    yield from _versions()
    yield from _settings(cli)
    yield _clock()
    place = cli.place
    if place.is_server:
        yield from _server(cli, probe(place.url))
    directory = _data_directory(cli)
    if directory is not None:
        yield _space(directory)
        yield _fsync(directory)
    if place.is_directory:
        yield from _store(cli)


# --- This machine --------------------------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    yield Finding("holdfast", OK, f"{version('holdfast')}, Python {platform.python_version()}, {platform.platform()}")
    if has_extra("server"):
        yield Finding("server extra", OK, "installed")
    else:
        yield Finding("server extra", OK, "not installed", f"to serve: {install_command('server')}")


def _settings(cli: CommandSession) -> Iterator[Finding]:
    from holdfast.server.kinds import Url
    from holdfast.server.setting import Setting
    from holdfast.server.sources import load_settings

    place = cli.place
    yield Finding("url", OK, f"{place.url} ({place.origin('url')})")
    yield Finding("tenant", OK, f"{place.tenant} ({place.origin('tenant')})")
    yield Finding("token", OK, "none" if place.token is None else f"given ({place.origin('token')})")
    try:
        loaded = load_settings({}, os.environ)
    except InvalidArgument as error:
        yield Finding("settings", BAD, error.message, "`holdfast serve` refuses to start with it")
        return
    for warning in loaded.warnings:
        yield Finding("settings", WARN, warning, "correct its name, or unset it")
    given: list[tuple[str, Setting]] = list(loaded.given())
    for name, setting in given:
        value = getattr(loaded.settings, setting.field)
        is_shown = not setting.kind.is_secret or isinstance(setting.kind, Url)
        yield Finding(name, OK, f"{setting.kind.show(value) if is_shown else '***'} ({loaded.origin(name)})")
    if not given:
        yield Finding("settings", OK, "all at their defaults (see: holdfast serve --print-settings)")


def _clock() -> Finding:
    """Whether the wall clock goes as the steady one does, which a running process keeps to."""
    before = SystemClock()
    threading.Event().wait(_WATCH_S)
    off_ms = abs(SystemClock().now_ms() - before.now_ms())
    if off_ms > _OFF_MS:
        return Finding(
            "clock",
            WARN,
            f"wall time went {off_ms} ms wrong in {_WATCH_S:g} s",
            "let NTP slew the clock and not step it; in a virtual machine, look at its time source",
        )
    return Finding("clock", OK, f"wall and steady time agree within {max(off_ms, 1)} ms")


# --- The disk ------------------------------------------------------------------------------------------------------


def _data_directory(cli: CommandSession) -> Path | None:
    """The store's, or the nearest that exists; of a server elsewhere there is none here."""
    from holdfast.server.settings import DEFAULT_DATA

    wanted = cli.place.url if cli.place.is_directory else os.environ.get("HOLDFAST_DATA") or DEFAULT_DATA
    path = Path(wanted).absolute()
    if not cli.place.is_directory and not path.is_dir():
        return None
    while not path.is_dir():
        path = path.parent
    return path


def _space(directory: Path) -> Finding:
    usage = shutil.disk_usage(directory)
    found = f"{size(usage.free)} of {size(usage.total)} free at {directory}"
    if usage.free < 0.2 * _GIB:
        return Finding("disk space", BAD, found, "free some: a full disk stops every enqueue")
    if usage.free < _GIB or usage.free < 0.03 * usage.total:
        return Finding("disk space", WARN, found, "free some before it is full; see journal_retention")
    return Finding("disk space", OK, found)


def _fsync(directory: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            took = [_time(lambda: _write_through(file)) for _ in range(_FSYNCS)]
    except OSError as error:
        return Finding(
            "fsync", BAD, f"{directory}: {error.strerror}", "a store must be able to write here: check owner and mode"
        )
    middle, worst = 1_000 * median(took), 1_000 * max(took)
    found = f"median {middle:.2f} ms, worst {worst:.2f} ms at {directory}"
    if middle > _SLOW_FSYNC_MS:
        return Finding(
            "fsync", WARN, found, "every durable answer waits for it: use a local SSD; enqueue and ack in batches"
        )
    if middle < 0.02:
        return Finding("fsync", WARN, found, "too fast to be true: is this a RAM disk, or a disk that does not sync?")
    return Finding("fsync", OK, found)


def _write_through(file: object) -> None:
    os.write(file.fileno(), b"\0" * 4_096)  # type: ignore[attr-defined]
    os.fsync(file.fileno())  # type: ignore[attr-defined]


def _time(act: Callable[[], None]) -> float:
    began = steady_s()
    act()
    return steady_s() - began


# --- The server, or the store --------------------------------------------------------------------------------------


def _server(cli: CommandSession, seen: Probe) -> Iterator[Finding]:
    place = cli.place
    if seen.error is not None:
        yield Finding("server", BAD, seen.error, "is `holdfast serve` running there, and is the URL right?")
        return
    status, advice = (
        (OK, "") if seen.is_ready else (BAD, "its log says why; the store may be out of reach, or it closes")
    )
    yield Finding("server", status, f"{seen.readiness}, answers in {seen.took_ms:.1f} ms", advice)
    if seen.version is not None:
        same = seen.version == version("holdfast")
        yield Finding("server version", OK if same else WARN, seen.version, "" if same else "use the same version here")
    if seen.skew_s is not None:
        found = f"{abs(seen.skew_s):.1f} s {'ahead of' if seen.skew_s > 0 else 'behind'} the server's"
        if abs(seen.skew_s) < _SKEW_WARN_S:
            yield Finding("clock skew", OK, "less than the second that can be told")
        else:
            status = BAD if abs(seen.skew_s) > _SKEW_BAD_S else WARN
            yield Finding(
                "clock skew", status, found, "run NTP on both: tokens expire, and --at is meant, by the clock"
            )
    if place.token is not None and place.url.startswith("http://") and not any(each in place.url for each in _LOOPBACK):
        yield Finding("token", WARN, "travels unencrypted", "use https://, or a tunnel")
    yield from _welcome(cli)


def _store(cli: CommandSession) -> Iterator[Finding]:
    if not Path(cli.place.url).exists():
        yield Finding("store", WARN, f"there is none at {cli.place.url} yet", "the first enqueue makes it")
        return
    yield from _welcome(cli)


def _welcome(cli: CommandSession) -> Iterator[Finding]:
    """Look at the queues of every tenant that this caller sees, or of the one that was given."""
    try:
        tenants = _tenants(cli)
        looked_at = tenants[:_MAX_TENANTS]
        failed = {
            f"{tenant}/{each.queue}": each.failed for tenant in looked_at for each in cli.hf.queues(tenant=tenant)
        }
    except StoreUnavailable as error:
        # One that another process has is in use, not broken.
        yield Finding("store", WARN if "in use" in error.message else BAD, error.message, "")
        return
    except HoldfastError as error:
        yield Finding("access", BAD, error.message, "give the right --token, --tenant or --url")
        return
    whose = f"tenant {tenants[0]}" if len(tenants) == 1 else f"{len(looked_at):,} tenants"
    yield Finding("access", OK, f"{len(failed):,} queues of {whose} can be seen")
    if len(tenants) > len(looked_at):
        yield Finding(
            "tenants",
            WARN,
            f"looked at the first {len(looked_at):,} of {len(tenants):,}",
            "to look at another: --tenant",
        )
    if total := sum(failed.values()):
        worst = max(failed, key=failed.__getitem__)
        yield Finding("dead letters", WARN, f"{total:,} failed messages, most in {worst}", f"see: holdfast dlq {worst}")
    yield from _leases(cli)


def _tenants(cli: CommandSession) -> list[str]:
    if not _is_of_every_tenant(cli):
        return [cli.place.tenant]
    # A store without a queue has no tenants yet.
    return sorted(each.tenant for each in cli.hf.tenants()) or [cli.place.tenant]


def _is_of_every_tenant(cli: CommandSession) -> bool:
    """Return whether no tenant was given: an operator, and anyone without identities, then means all of them."""
    return cli.place.origin("tenant") == "default"


def _leases(cli: CommandSession) -> Iterator[Finding]:
    tenant = None if _is_of_every_tenant(cli) else cli.place.tenant
    try:
        page = cli.hf.journal(start_of(cli.hf, _EVENTS, tenant), _EVENTS, tenant=tenant)
    except HoldfastError as error:
        yield Finding("leases", WARN, error.message, "")
        return
    expired = [each for each in page if each.event is Event.EXPIRED or each.reason == "lease_expired"]
    if not expired:
        yield Finding("leases", OK, f"none ran out in the last {len(page):,} events")
        return
    [(name, _)] = Counter(f"{each.tenant}/{each.queue}" for each in expired).most_common(1)
    yield Finding(
        "leases",
        WARN,
        f"{len(expired):,} ran out in the last {len(page):,} events, most in {name}",
        "workers died, or handlers outlast their lease: holdfast policy QUEUE lease=…, or extend while working",
    )
