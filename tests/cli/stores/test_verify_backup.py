"""`holdfast verify` and `holdfast backup` in the hands of a shell."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.database import Database
from tests.postgres.server import PostgresServer
from tests.stores.postgres.verify.made_store import MadeStore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with holdfast.open(str(path), durability="os") as hf:
        hf.queue("jobs", tenant="acme").enqueue([b"one", b"two"])
    return path


def lose_an_index_entry(store: Path) -> None:
    database = Database(store)
    [key, _] = database.scan(keys.VISIBLE, b"", b"\xff")
    database.commit.delete(key, keys.VISIBLE)
    database.write()
    database.close()


def test_a_clean_store_is_exit_code_0_with_its_counts(run: Callable[..., Any], store: Path) -> None:
    ran = run("verify", store)

    assert ran.code == 0
    assert "2 messages (2 ready" in ran.out
    assert ran.out.endswith("no violations\n")
    assert "\x1b" not in ran.out + ran.err


@pytest.mark.spec("4.8")
def test_a_damaged_store_is_exit_code_4_with_each_violation(run: Callable[..., Any], store: Path) -> None:
    lose_an_index_entry(store)

    ran = run("verify", store)

    assert ran.code == 4
    assert "is missing from the visibility index (vi)" in ran.out
    assert ran.out.endswith("1 violations: restore a backup\n")


def test_with_json_the_report_is_one_object(run: Callable[..., Any], store: Path) -> None:
    lose_an_index_entry(store)

    ran = run("verify", store, "--json")

    report = json.loads(ran.out)
    assert ran.code == 4
    assert (report["ready"], report["queues"], report["violation_count"]) == (2, 1, 1)
    assert report["violations"][0]["queue"] == "acme/jobs"


@pytest.mark.parametrize("command", [("verify",), ("backup", "copy")])
def test_what_is_no_store_is_refused_in_one_line(
    run: Callable[..., Any], tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(command[0], tmp_path / "nothing", *command[1:])

    assert ran.code == 4
    assert ran.err.startswith("holdfast: ")
    assert ran.err.count("\n") == 1
    assert "holds no store" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_use_is_copied_but_not_verified(run: Callable[..., Any], store: Path, tmp_path: Path) -> None:
    with holdfast.open(str(store)) as hf:
        hf.queue("jobs", tenant="acme").enqueue(b"three")

        refused = run("verify", store)
        copied = run("backup", store, tmp_path / "copy")

    assert refused.code == 75
    assert "is in use by" in refused.err
    assert "holdfast backup" in refused.err
    assert copied.code == 0
    assert "holdfast verify" in copied.out
    assert "3 messages (3 ready" in run("verify", tmp_path / "copy").out


def test_a_backup_says_what_it_copied(run: Callable[..., Any], store: Path, tmp_path: Path) -> None:
    ran = run("backup", store, tmp_path / "copy", "--json")

    answer = json.loads(ran.out)
    assert ran.code == 0
    assert answer["target"] == str(tmp_path / "copy")
    assert answer["files"] > 3
    assert answer["bytes"] > 0


def test_a_backup_never_goes_over_what_is_there(run: Callable[..., Any], store: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")

    ran = run("backup", store, tmp_path / "full")

    assert ran.code == 4
    assert "not an empty directory" in ran.err
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["note.txt"]


def test_an_object_store_is_checked_by_its_url_while_it_is_in_use(run: Callable[..., Any], tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    with holdfast.open(url, durability="os") as hf:
        hf.queue("jobs", tenant="acme").enqueue([b"one", b"two"])

        ran = run("verify", url)

    assert (ran.code, ran.err) == (0, "")
    assert f"{url}: 2 messages (2 ready" in ran.out
    assert ran.out.endswith("no violations\n")


def test_an_object_store_that_lost_a_payload_is_exit_code_4(run: Callable[..., Any], tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    with holdfast.open(url, durability="os") as hf:
        hf.queue("jobs", tenant="acme").enqueue(b"1" * (16 << 10 | 1))  # too large for the document
    [payload] = tmp_path.rglob("*.bin")
    payload.unlink()

    ran = run("verify", url, "--json")

    report = json.loads(ran.out)
    assert ran.code == 4
    assert report["violations"][0]["queue"] == "acme/jobs"
    assert "its payload is missing" in report["violations"][0]["what"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///nowhere/at/all", "holds no store"),
        ("memory://", "gone with its process"),
        ("http://127.0.0.1:1", "is a server: give the store behind it"),
        ("holdfast://user:secret@127.0.0.1:1", "is a server: give the store behind it"),
        ("postgres://host/db,s3://bucket", "name the databases of one store"),
        ("mysql://host/db", "not a scheme"),
    ],
)
def test_a_url_that_is_no_store_is_refused_in_one_line(run: Callable[..., Any], url: str, said: str) -> None:
    ran = run("verify", url)

    assert ran.code == 4
    assert ran.err.startswith("holdfast: ")
    assert said in ran.err
    assert "secret" not in ran.err
    assert ran.err.count("\n") == 1


def test_a_database_that_does_not_respond_is_to_be_tried_again(run: Callable[..., Any]) -> None:
    ran = run("verify", "postgres://me:secret@127.0.0.1:1/db")

    assert ran.code == 75
    assert "cannot connect to postgres://me@127.0.0.1:1/db" in ran.err
    assert "secret" not in ran.err


def test_the_databases_of_a_store_are_checked_by_their_urls_while_they_are_in_use(
    run: Callable[..., Any], postgres: PostgresServer
) -> None:
    urls = ",".join(postgres.make_databases("verify_cli_a", "verify_cli_b"))
    with holdfast.open(urls) as hf:
        hf.queue("jobs", tenant="acme").enqueue([b"one", b"two"])

        ran = run("verify", urls)

    assert (ran.code, ran.err) == (0, "")
    assert "2 messages (2 ready" in ran.out
    assert ran.out.endswith("no violations\n")


def test_a_violation_in_a_database_is_exit_code_4_with_its_name(
    run: Callable[..., Any], postgres: PostgresServer
) -> None:
    [url] = postgres.make_databases("verify_cli")
    with holdfast.open(url) as hf:
        [id] = hf.queue("jobs", tenant="acme").enqueue(b"one")
    MadeStore([url]).sql("UPDATE items SET status = 4")

    ran = run("verify", url, "--json")

    assert ran.code == 4
    [violation] = [each for each in json.loads(ran.out)["violations"] if each["damage"] == "index-missing"]
    assert (violation["queue"], violation["id"]) == ("acme/jobs", str(id))


def test_another_map_of_queues_to_databases_is_a_flag(run: Callable[..., Any], postgres: PostgresServer) -> None:
    urls = ",".join(postgres.make_databases("verify_cli_a", "verify_cli_b"))
    with holdfast.open(urls, shard_map="fnv-mod") as hf:
        for number in range(8):
            hf.queue(f"q{number}", tenant="acme").enqueue(b"one")

    assert run("verify", urls, "--shard-map", "fnv-mod").code == 0
    assert "[queue-misplaced]" in run("verify", urls).out
    assert run("verify", urls, "--shard-map", "other").code == 2
