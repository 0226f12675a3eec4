"""Opening of Spark sessions. All sessions of the pipeline are built here."""

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.model.errors import InvalidArgument
from holdfast.model.extras import install_command
from holdfast.pipeline.java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings of every session: days are UTC days on every machine, and Arrow batches are small enough for the CPU cache.
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}
_LOG = Path(__file__).with_name("log4j2.properties")
# A session of seconds would spend most of them in parallel compilation and garbage collection.
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Variables of another Spark installation or of a tool around it, which would be mixed into ours.
_FOREIGN = ("SPARK_HOME", "SPARK_CONF_DIR")


def open_session(
    name: str = "holdfast",
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
    is_brief: bool = False,
) -> "SparkSession":
    """Return the session for a job.

    That is a Spark Connect session if `remote` is given, else the active session, else the cluster's session under
    spark-submit, else a new one on `master` (by default `local[*]`).

    `settings` override the defaults. `is_brief` suits sessions of seconds on few cores: it starts sooner and runs
    slower.
    """
    if remote is not None:
        if master is not None:
            raise InvalidArgument(
                "give master or remote, not both: a Spark Connect server has its own master", field="master"
            )
        return _connect(name, remote, dict(settings or {}))
    active = _active()
    if active is not None:
        for key, value in _ALWAYS.items():
            active.conf.set(key, value)
        return active
    if is_submitted():
        if master is not None:
            raise InvalidArgument("spark-submit has set the master: give --master to spark-submit only", field="master")
        return _get_or_create(name, {**_ALWAYS, **(settings or {})}, None)
    return _start(name, master or "local[*]", dict(settings or {}), is_brief=is_brief)


def is_submitted() -> bool:
    """Return True if this program was started by spark-submit, which has chosen the Java and the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _start(name: str, master: str, settings: dict[str, str], *, is_brief: bool) -> "SparkSession":
    _prepare_environment(is_local=master.startswith("local"))
    return _get_or_create(name, _merge_settings(master, settings, is_brief=is_brief), master)


def _merge_settings(master: str, given: dict[str, str], *, is_brief: bool) -> dict[str, str]:
    """Return the settings of a Java that is started here. The given settings override the defaults."""
    settings = dict(given)
    java = f"-Dlog4j2.configurationFile={_LOG.as_uri()}"
    if is_brief:
        java = f"{java} {_BRIEF}"
    if "TMPDIR" in os.environ:
        # Java ignores the variable.
        java = f"{java} {shlex.quote(f'-Djava.io.tmpdir={tempfile.gettempdir()}')}"
    ours = {**_ALWAYS, "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        ours |= {
            # A local session must not be reachable from other machines.
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": str(_cores(master)),
            "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"holdfast-warehouse-{os.getpid()}"),
        }
    ours["spark.driver.extraJavaOptions"] = f"{java} {settings.pop('spark.driver.extraJavaOptions', '')}".strip()
    return {**ours, **settings}


def _prepare_environment(*, is_local: bool) -> None:
    """Set the environment variables for a Java that is started here."""
    home = find_java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
    for variable in _FOREIGN:
        os.environ.pop(variable, None)
    # Spark's workers use this interpreter, and so find the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _cores(master: str) -> int:
    inside = master.partition("[")[2].rstrip("]").split(",")[0]
    return int(inside) if inside.isdigit() else (1 if master == "local" else os.cpu_count() or 1)


def _get_or_create(name: str, settings: Mapping[str, str], master: str | None) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _connect(name: str, remote: str, settings: dict[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    ours = {**_ALWAYS, **settings}
    if remote.startswith("local"):
        # This starts a Spark Connect server here.
        _prepare_environment(is_local=True)
        ours = _merge_settings(remote, settings, is_brief=False)
    try:
        builder = SparkSession.Builder().appName(name).remote(remote)
        for key, value in ours.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    except ImportError as error:
        raise InvalidArgument(
            f"Spark Connect needs the connect extra ({error}): {install_command('connect')}", field="remote"
        ) from None


def _active() -> "SparkSession | None":
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
