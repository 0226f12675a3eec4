"""Spark Connect: a client without a Java process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

SRC = Path(holdfast.__file__).parent
# What a session has only where its Java is in reach.
CLASSIC = re.compile(r"\b(sparkContext|_jvm|_jsc|_jdf|_jsparkSession|rdd)\b")


def test_no_job_reaches_past_its_session_into_a_java() -> None:
    looked_at = [
        file for part in ("jobs", "lake", "report", "sources") for file in (SRC / "pipeline" / part).glob("*.py")
    ]
    assert len(looked_at) > 30
    assert {file.name: found for file in looked_at if (found := CLASSIC.findall(file.read_text()))} == {}


@pytest.mark.spec("9.11")
@pytest.mark.proof
def test_a_store_is_archived_audited_and_reported_on_spark_connect(tmp_path: Path) -> None:
    # Not in the environment of the other tests: with pandas in it every worker of theirs would import that too.
    packages = tmp_path / "packages"
    wanted = ["grpcio>=1.76", "grpcio-status>=1.76", "numpy", "pandas>=2.2,<3", "pytz"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(packages), *wanted], check=True
    )
    with holdfast.open(str(tmp_path / "store"), durability="os") as hf:
        queue = hf.queue("mail", tenant="acme")
        queue.enqueue([b"x"] * 5)
        queue.ack(queue.claim(limit=5))

    def run(*arguments: object) -> dict[str, object]:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "pipeline", *map(str, arguments), "--remote", "local[2]", "--json"],
            env={**os.environ, "PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return answer

    lake = tmp_path / "lake"
    archived = run("archive", "--url", tmp_path / "store", "--lake", lake)
    assert (archived["events"], archived["messages"]) == (15, 5)
    audited = run("audit", "--lake", lake)
    assert (audited["events"], audited["broken"]) == (15, {})
    run("report", "--lake", lake, "--out", tmp_path / "page.html")
    assert "acme" in (tmp_path / "page.html").read_text()
