"""`holdfast pipeline migrate`: copy a store to another one, or turn a directory of the legacy layout into a store."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from holdfast.cli.failures import Usage, print_error
from holdfast.cli.pipeline.legacy import (
    migrate_in_place,
    print_oddities,
    read_legacy,
    require_readable,
)
from holdfast.cli.pipeline.moving import AnyQueue, split_queue
from holdfast.cli.pipeline.spark_session import (
    Conf,
    DryRun,
    Master,
    Remote,
    finish,
    read_snapshot,
    shown_progress,
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
            help="The new store: URL or directory. Without it, a directory of the legacy layout is migrated in place.",
        ),
    ] = None,
    to_token: Annotated[
        str | None,
        typer.Option(
            metavar="JWT",
            envvar="HOLDFAST_TO_TOKEN",
            show_envvar=False,
            help="Token for the new server. [env: HOLDFAST_TO_TOKEN]",
        ),
    ] = None,
    queue: AnyQueue = "*/*",
    with_failed: Annotated[
        bool, typer.Option("--with-failed", help="Also copy dead letters, which become ready in the new store.")
    ] = False,
    accept_unreadable: AcceptUnreadable = 0,
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Copy the messages of a store (--url) to another one of any kind (--to), while neither is in use.

    Messages get new ids, and keep the old id in the header `migrated-from`. A message in flight cannot be claimed in
    the new store before its lease expires, and a delayed one not before it is due. The command is safe to run again: it
    copies only missing messages. Then the copies are read back. Exits with 4 if their number or contents differ.

    A directory of the legacy layout is read as the queue default/default. Without --to it is migrated in place.
    """
    from holdfast.pipeline.jobs.migrate import migrate

    tenant, name = split_queue(queue)
    if to is None or _is_same(to, cli):
        if to is not None and not cli.is_legacy:
            raise Usage("--to and --url are the same store: give another --to")
        migrate_in_place(cli, accept_unreadable, dry_run=dry_run)
        return
    # Read before the directory is opened as a source, because only one reader can hold its lock.
    legacy = read_legacy(Path(cli.target.url)) if cli.is_legacy else None
    cli.look_only()
    if legacy is None and accept_unreadable:
        raise Usage("--accept-unreadable applies only to a directory of the legacy layout")
    if legacy is not None and not dry_run:
        require_readable(legacy, accept_unreadable)
    with (
        shown_progress(cli.output) as progress,
        spark_session("migrate", master, remote, conf) as spark,
        read_snapshot(cli, spark, tenant, name) as snapshot,
    ):
        if dry_run:
            done = migrate(snapshot, None, with_failed=with_failed, progress=progress)
        else:
            with _open_new_store(spark, to, to_token, tenant, name) as (target, read_back):
                done = migrate(snapshot, target, read_back=read_back, with_failed=with_failed, progress=progress)
    found = ", ".join(f"{count:,} {state}" for state, count in sorted(done.found.items())) or "nothing"
    text = f"found {found}; " + (
        "dry run, nothing was copied"
        if done.is_dry_run
        else f"{done.copied:,} copied, {done.known:,} already copied, {done.left:,} dead letters not copied"
    )
    if done.digest and done.is_sound:
        text += f"; counts and contents agree (sum {done.digest.lstrip('0')[:16] or '0'})"
    if legacy is not None:
        done = replace(done, legacy_order=legacy.order)
        text += f"; order of the fields {legacy.order}"
    finish(cli.output, done, text, is_sound=done.is_sound, checks=done.checks)
    if legacy is not None and legacy.oddities and not cli.output.is_quiet:
        print_error(f"{cli.target.url} also has keys that are not messages: they were not copied, and are still there")
        print_oddities(legacy)


@contextmanager
def _open_new_store(
    spark: "SparkSession", to: str, token: str | None, tenant: str, queue: str
) -> "Iterator[tuple[WriteTarget, Callable[[], AbstractContextManager[DataFrame]]]]":
    """Yield the target of the copy, and the function that reads the copies back."""
    import holdfast
    from holdfast.pipeline.jobs.migrate import read_opened_snapshot, read_source_snapshot
    from holdfast.pipeline.jobs.targets import OpenedTarget, SinkTarget

    if to.lower().startswith(("http://", "https://")):
        options = {"url": to, **({} if token is None else {"token": token})}
        yield SinkTarget(options), lambda: nullcontext(read_source_snapshot(spark, options, tenant, queue))
        return
    with holdfast.open(to) as opened:
        yield OpenedTarget(opened), lambda: read_opened_snapshot(spark, opened, tenant, queue)


def _is_same(to: str, cli: CommandSession) -> bool:
    return "://" not in to and cli.target.is_directory and Path(to).resolve() == Path(cli.target.url).resolve()
