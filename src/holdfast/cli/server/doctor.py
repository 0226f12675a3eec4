"""`holdfast doctor`: find likely problems, and give advice."""

import os
import platform
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import IO, NamedTuple

import typer

from holdfast.cli.failures import REFUSED
from holdfast.cli.inspection.tail import start_of
from holdfast.cli.output import size
from holdfast.cli.server.probe import Probe, probe
from holdfast.cli.session import CommandSession
from holdfast.clock import SystemClock, sleep, steady_s
from holdfast.model.errors import HoldfastError, InvalidArgument, StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.extras import has_extra, install_command

OK, WARN, BAD = "ok", "warn", "bad"

_GIB = 1 << 30
_SLOW_FSYNC_MS = 20.0
_FSYNCS = 20
# The server's time comes from an HTTP date, which has whole seconds.
_SKEW_WARN_S, _SKEW_BAD_S = 3.0, 60.0
# How long the clock is watched, and by how much it may drift in that time.
_CLOCK_WATCH_S, _MAX_DRIFT_MS = 0.25, 20
_EVENTS = 2_000
# Each tenant costs one call.
_MAX_TENANTS = 200
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    status: str
    found: str
    advice: str = ""


def doctor(cli: CommandSession) -> None:
    """Check versions, settings, the clock, the disk, and the server or store.

    Exits with 4 if a check fails.
    """
    findings = list(_examine(cli))
    cli.output.rows(each._asdict() for each in findings)
    if any(each.status == BAD for each in findings):
        raise typer.Exit(REFUSED)


def _examine(cli: CommandSession) -> Iterator[Finding]:
    yield from _versions()
    yield from _settings(cli)
    yield _clock()
    target = cli.target
    if target.is_server:
        yield from _server(cli, probe(target.url))
    directory = _data_directory(cli)
    if directory is not None:
        yield _space(directory)
        yield _fsync(directory)
    if target.is_directory:
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

    target = cli.target
    yield Finding("url", OK, f"{target.url} ({target.origin('url')})")
    yield Finding("tenant", OK, f"{target.tenant} ({target.origin('tenant')})")
    yield Finding("token", OK, "none" if target.token is None else f"given ({target.origin('token')})")
    try:
        loaded = load_settings({}, os.environ)
    except InvalidArgument as error:
        yield Finding("settings", BAD, error.message, "`holdfast serve` does not start with it")
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
    """Compare the wall clock with the steady clock, by which a running process counts time."""
    before = SystemClock()
    sleep(_CLOCK_WATCH_S)
    off_ms = abs(SystemClock().now_ms() - before.now_ms())
    if off_ms > _MAX_DRIFT_MS:
        return Finding(
            "clock",
            WARN,
            f"the wall clock drifted by {off_ms} ms within {_CLOCK_WATCH_S:g} s",
            "let NTP slew the clock instead of stepping it; in a virtual machine, check its time source",
        )
    return Finding("clock", OK, f"wall clock and steady clock agree within {max(off_ms, 1)} ms")


# --- The disk ------------------------------------------------------------------------------------------------------


def _data_directory(cli: CommandSession) -> Path | None:
    """Return the store's directory or its nearest existing parent; None for a server elsewhere."""
    from holdfast.server.store_settings import DEFAULT_DATA

    wanted = cli.target.url if cli.target.is_directory else os.environ.get("HOLDFAST_DATA") or DEFAULT_DATA
    path = Path(wanted).absolute()
    if not cli.target.is_directory and not path.is_dir():
        return None
    while not path.is_dir():
        path = path.parent
    return path


def _space(directory: Path) -> Finding:
    usage = shutil.disk_usage(directory)
    found = f"{size(usage.free)} of {size(usage.total)} free at {directory}"
    if usage.free < 0.2 * _GIB:
        return Finding("disk space", BAD, found, "free some space: a full disk stops every enqueue")
    if usage.free < _GIB or usage.free < 0.03 * usage.total:
        return Finding("disk space", WARN, found, "free some space before the disk is full; see journal_retention")
    return Finding("disk space", OK, found)


def _fsync(directory: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            took = [_time(lambda: _write_and_sync(file)) for _ in range(_FSYNCS)]
    except OSError as error:
        return Finding(
            "fsync",
            BAD,
            f"{directory}: {error.strerror}",
            "a store must be able to write here: check the owner and the mode",
        )
    middle, worst = 1_000 * median(took), 1_000 * max(took)
    found = f"median {middle:.2f} ms, worst {worst:.2f} ms at {directory}"
    if middle > _SLOW_FSYNC_MS:
        return Finding(
            "fsync", WARN, found, "every durable operation waits for fsync: use a local SSD; enqueue and ack in batches"
        )
    if middle < 0.02:
        return Finding("fsync", WARN, found, "suspiciously fast: is this a RAM disk, or a disk that ignores fsync?")
    return Finding("fsync", OK, found)


def _write_and_sync(file: IO[bytes]) -> None:
    os.write(file.fileno(), b"\0" * 4_096)
    os.fsync(file.fileno())


def _time(act: Callable[[], None]) -> float:
    began = steady_s()
    act()
    return steady_s() - began


# --- The server, or the store --------------------------------------------------------------------------------------


def _server(cli: CommandSession, seen: Probe) -> Iterator[Finding]:
    target = cli.target
    if seen.error is not None:
        yield Finding("server", BAD, seen.error, "is `holdfast serve` running there, and is the URL right?")
        return
    status, advice = (
        (OK, "")
        if seen.is_ready
        else (BAD, "see its log: the store may be unreachable, or the server is shutting down")
    )
    yield Finding("server", status, f"{seen.readiness}, responds in {seen.took_ms:.1f} ms", advice)
    if seen.version is not None:
        same = seen.version == version("holdfast")
        yield Finding(
            "server version", OK if same else WARN, seen.version, "" if same else "use the same version on both sides"
        )
    if seen.skew_s is not None:
        found = f"{abs(seen.skew_s):.1f} s {'ahead of' if seen.skew_s > 0 else 'behind'} the server's"
        if abs(seen.skew_s) < _SKEW_WARN_S:
            yield Finding("clock skew", OK, f"less than {_SKEW_WARN_S:g} s")
        else:
            status = BAD if abs(seen.skew_s) > _SKEW_BAD_S else WARN
            yield Finding(
                "clock skew",
                status,
                found,
                "run NTP on both machines: the expiry of tokens and --at depend on the clock",
            )
    if (
        target.token is not None
        and target.url.startswith("http://")
        and not any(each in target.url for each in _LOOPBACK)
    ):
        yield Finding("token", WARN, "is sent unencrypted", "use https://, or a tunnel")
    yield from _access(cli)


def _store(cli: CommandSession) -> Iterator[Finding]:
    if not Path(cli.target.url).exists():
        yield Finding("store", WARN, f"there is no store at {cli.target.url} yet", "the first enqueue creates it")
        return
    if cli.is_legacy:
        yield Finding(
            "layout",
            WARN,
            f"{cli.target.url} is of the legacy layout",
            "the first program that opens it moves its messages while it works; these commands only read it",
        )
    yield from _access(cli)


def _access(cli: CommandSession) -> Iterator[Finding]:
    """Check the queues of the given tenant, or of all tenants that the caller may see."""
    try:
        tenants = _tenants(cli)
        checked = tenants[:_MAX_TENANTS]
        queues = [(f"{tenant}/{each.queue}", each) for tenant in checked for each in cli.hf.queues(tenant=tenant)]
        failed = {name: each.failed for name, each in queues}
    except StoreUnavailable as error:
        # A store that another process has open is not damaged.
        yield Finding("store", WARN if "in use" in error.message else BAD, error.message, "")
        return
    except HoldfastError as error:
        yield Finding("access", BAD, error.message, "give the right --token, --tenant or --url")
        return
    owner = f"tenant {tenants[0]}" if len(tenants) == 1 else f"{len(checked):,} tenants"
    yield Finding("access", OK, f"{len(failed):,} queues of {owner} are visible")
    if len(tenants) > len(checked):
        yield Finding(
            "tenants",
            WARN,
            f"checked the first {len(checked):,} of {len(tenants):,}",
            "to check another, give --tenant",
        )
    if total := sum(failed.values()):
        worst = max(failed, key=failed.__getitem__)
        yield Finding("dead letters", WARN, f"{total:,} failed messages, most in {worst}", f"see: holdfast dlq {worst}")
    for name, each in queues:
        if isinstance(each.legacy_left, int):
            yield _legacy(name, each.legacy_left)
    yield from _leases(cli)


def _legacy(name: str, left: int) -> Finding:
    if left:
        found = f"{left:,} messages of {name} are still to be moved from the legacy layout"
        return Finding("legacy layout", OK, found, "they are moved while a program has the store open")
    return Finding(
        "legacy layout",
        WARN,
        f"all messages of {name} are moved, and the old database is still there",
        "if this stays, it has keys that cannot be read: close the store, and run holdfast db migrate DIR",
    )


def _tenants(cli: CommandSession) -> list[str]:
    if not _covers_all_tenants(cli):
        return [cli.target.tenant]
    # A store without queues has no tenants.
    return sorted(each.tenant for each in cli.hf.tenants()) or [cli.target.tenant]


def _covers_all_tenants(cli: CommandSession) -> bool:
    """Return True if no tenant was given. Operators, and callers of a server without tokens, then see every tenant."""
    return cli.target.origin("tenant") == "default"


def _leases(cli: CommandSession) -> Iterator[Finding]:
    tenant = None if _covers_all_tenants(cli) else cli.target.tenant
    try:
        page = cli.hf.journal(start_of(cli.hf, _EVENTS, tenant), _EVENTS, tenant=tenant)
    except HoldfastError as error:
        yield Finding("leases", WARN, error.message, "")
        return
    expired = [each for each in page if each.event is Event.EXPIRED or each.reason == "lease_expired"]
    if not expired:
        yield Finding("leases", OK, f"none expired in the last {len(page):,} events")
        return
    [(name, _)] = Counter(f"{each.tenant}/{each.queue}" for each in expired).most_common(1)
    yield Finding(
        "leases",
        WARN,
        f"{len(expired):,} expired in the last {len(page):,} events, most in {name}",
        "workers died, or handlers run longer than the lease: holdfast policy QUEUE lease=…, or extend while working",
    )
