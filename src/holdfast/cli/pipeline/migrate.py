"""`holdfast pipeline migrate`: a store into another, or a directory of the legacy layout into a store."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from holdfast.cli.failures import Usage, complain
from holdfast.cli.pipeline.legacy import is_legacy_place, look_at, migrate_in_place, require_readable, say_oddities
from holdfast.cli.pipeline.moving import AnyQueue, parts
from holdfast.cli.pipeline.spark_session import (
    Conf,
    DryRun,
    Master,
    Remote,
    finish,
    shown_progress,
    snapshot_of,
    spark_session,
)
from holdfast.cli.session import CommandSession
from holdfast.cli.stores.db import AcceptUnreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.jobs.targets import WriteTarget


def migrate(
    cli: CommandSession,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URL|DIR",
            help="The new store: a server, a directory, … Left out, a directory of the legacy layout becomes a store.",
            show_default=False,
        ),
    ] = None,
    to_token: Annotated[
        str | None,
        typer.Option(metavar="JWT", envvar="HOLDFAST_TO_TOKEN", help="For the new server.", show_default=False),
    ] = None,
    queue: AnyQueue = "*/*",
    with_failed: Annotated[
        bool, typer.Option("--with-failed", help="Dead letters too: they are ready in the new store.")
    ] = False,
    accept_unreadable: AcceptUnreadable = 0,
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Copy the messages of a store (--url) into another (--to), of whatever kinds, while nobody works on them.

    Messages get new ids, and carry the old in the header `migrated-from`. A message in flight cannot be claimed in the
    new store before its lease ends, a delayed one not before it is due. Run again, it copies what is missing. Then the
    copies are read back: exits with 4 if they are not as many, or their contents differ.

    A directory of the legacy layout is read as the queue default/default. Without --to it becomes a store in its place.
    """
    from holdfast.pipeline.jobs.migrate import migrate

    tenant, name = parts(queue)
    if to is None or _is_same(to, cli):
        if to is not None and not is_legacy_place(cli):
            raise Usage("--to is the store that --url names: give another one")
        migrate_in_place(cli, accept_unreadable, dry_run=dry_run)
        return
    # Before the directory is opened: it has one lock.
    legacy = look_at(Path(cli.place.url)) if is_legacy_place(cli) else None
    if legacy is None and accept_unreadable:
        raise Usage("--accept-unreadable is for a directory of the legacy layout")
    if legacy is not None and not dry_run:
        require_readable(legacy, accept_unreadable)
    with (
        shown_progress(cli.output) as progress,
        spark_session("migrate", master, remote, conf) as spark,
        snapshot_of(cli, spark, tenant, name) as snapshot,
    ):
        if dry_run:
            done = migrate(snapshot, None, with_failed=with_failed, progress=progress)
        else:
            with _new_store(spark, to, to_token, tenant, name) as (target, read_back):
                done = migrate(snapshot, target, read_back=read_back, with_failed=with_failed, progress=progress)
    found = ", ".join(f"{count:,} {state}" for state, count in sorted(done.found.items())) or "nothing"
    said = f"found {found}; " + (
        "nothing was copied: a dry run"
        if done.is_dry_run
        else f"{done.copied:,} copied, {done.known:,} were there already, {done.left:,} dead letters left"
    )
    if done.digest and done.is_sound:
        said += f"; counts and contents agree (sum {done.digest.lstrip('0')[:16] or '0'})"
    if legacy is not None:
        done = replace(done, legacy_order=legacy.order)
        said += f"; fields in the order {legacy.order}"
    finish(cli.output, done, said, is_sound=done.is_sound, checks=done.checks)
    if legacy is not None and legacy.oddities and not cli.output.is_quiet:
        complain(f"{cli.place.url} also has keys that are not messages: they were not copied, and stay there")
        say_oddities(legacy)


@contextmanager
def _new_store(
    spark: "SparkSession", to: str, token: str | None, tenant: str, queue: str
) -> "Iterator[tuple[WriteTarget, Callable[[], AbstractContextManager[DataFrame]]]]":
    """Where the messages go, and how they are read back from there."""
    import holdfast
    from holdfast.pipeline.jobs.migrate import snapshot_of_opened, snapshot_of_source
    from holdfast.pipeline.jobs.targets import OpenedTarget, SinkTarget

    if to.lower().startswith(("http://", "https://")):
        options = {"url": to, **({} if token is None else {"token": token})}
        yield SinkTarget(options), lambda: nullcontext(snapshot_of_source(spark, options, tenant, queue))
        return
    with holdfast.open(to) as opened:
        yield OpenedTarget(opened), lambda: snapshot_of_opened(spark, opened, tenant, queue)


def _is_same(to: str, cli: CommandSession) -> bool:
    return "://" not in to and cli.place.is_directory and Path(to).resolve() == Path(cli.place.url).resolve()
