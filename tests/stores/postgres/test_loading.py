"""Messages loaded by COPY are as if enqueued: once by key, counted, announced to waiting claims, and within quotas."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import asyncpg
import pyarrow as pa
import pytest

import holdfast
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.stores.payloads.pieces import PIECES_ABOVE
from holdfast.stores.postgres.bulk.loader import Loader
from tests.postgres.server import PostgresServer
from tests.waiting import wait_until

REF = QueueRef("default", "in")
MAX_PAYLOAD = 1 << 20


@pytest.fixture(scope="module")
def _databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("loading_a", "loading_b")


@pytest.fixture
def urls(postgres: PostgresServer, _databases: list[str]) -> Iterator[list[str]]:
    yield _databases
    postgres.empty(_databases)


@pytest.fixture
def hf(urls: list[str]) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(",".join(urls)) as opened:
        yield opened


@pytest.fixture
def loader(urls: list[str]) -> Iterator[Loader]:
    opened = Loader(urls, max_payload=MAX_PAYLOAD)
    yield opened
    opened.close()


def drafts_of(first: int, end: int, **options: Any) -> list[Draft]:
    return [Draft(payload=f"m{n}".encode(), key=f"k{n:05}", **options) for n in range(first, end)]


def rows_of(urls: list[str], sql: str) -> list[dict[str, Any]]:
    async def fetch() -> list[dict[str, Any]]:
        rows = []
        for url in urls:
            connection = await asyncpg.connect(url, server_settings={"search_path": "holdfast"})
            rows += [dict(row) for row in await connection.fetch(sql)]
            await connection.close()
        return rows

    return asyncio.run(fetch())


def execute(url: str, sql: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url, server_settings={"search_path": "holdfast"})
        await connection.execute(sql)
        await connection.close()

    asyncio.run(run())


def payloads(hf: holdfast.Holdfast, ref: QueueRef = REF) -> list[bytes]:
    return sorted(
        each.payload or b"" for each in hf.queue(ref.queue, tenant=ref.tenant).list(limit=10_000, payload=True)
    )


def test_loaded_messages_are_stored_counted_and_announced_like_enqueued_ones(
    urls: list[str], hf: holdfast.Holdfast, loader: Loader
) -> None:
    hf.queue("in").set_policy(ttl_ms=3_600_000)
    hf.queue("out").set_policy(ttl_ms=3_600_000)
    options = [
        {},
        {"headers": {"a": "b"}, "priority": 3, "correlation_id": "c-1", "max_retries": 2},
        {"delay": 3_600, "ttl": 60},
        {"content_type": "text/plain"},
    ]
    hf.queue("out").enqueue([holdfast.NewMessage(b"x", key=f"k{n}", **each) for n, each in enumerate(options)])
    loaded = loader.load(
        {
            REF: [
                Draft(payload=b"x", key="k0", is_json=False),
                Draft(
                    payload=b"x",
                    key="k1",
                    is_json=False,
                    headers={"a": "b"},
                    priority=3,
                    correlation_id="c-1",
                    max_retries=2,
                ),
                Draft(payload=b"x", key="k2", is_json=False, delay_ms=3_600_000, ttl_ms=60_000),
                Draft(payload=b"x", key="k3", is_json=False, content_type="text/plain"),
            ]
        }
    )

    assert loaded == len(options)
    for what, sql in {
        "messages": (
            "SELECT queue, status, priority, deliver_after - created_at AS delay, items.bytes, is_json, "
            "expires_at - created_at AS ends, content_type, headers, items.ttl_ms, correlation_id, max_retries, "
            "payload, attempt, version, failures FROM items JOIN queues ON key = queue_key"
        ),
        "keys": (
            "SELECT queue, seen_keys.key, correlation_id, "
            "EXISTS (SELECT 1 FROM items WHERE items.id = seen_keys.id) AS has "
            "FROM seen_keys JOIN queues ON queues.key = queue_key"
        ),
        "events": (
            "SELECT queue, event, priority, attempt, version, bytes, reason, correlation_id, at = created_at AS is_now "
            "FROM journal JOIN queues ON key = queue_key"
        ),
        "counts": (
            "SELECT queue, sum(waiting) AS waiting, sum(delayed) AS delayed, sum(bytes) AS bytes "
            "FROM all_counts JOIN queues ON key = queue_key GROUP BY queue"
        ),
    }.items():
        rows = rows_of(urls, sql)
        ours, theirs = (
            sorted([{k: v for k, v in row.items() if k != "queue"} for row in rows if row["queue"] == queue], key=str)
            for queue in ("in", "out")
        )
        assert ours == theirs, what
        assert ours, what


def columns_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    every = {"tenant": "default", "queue": "in", "content_type": "application/octet-stream"}
    return pa.RecordBatch.from_pylist(
        [{**every, **row} for row in rows],
        pa.schema(
            [
                ("tenant", pa.string()),
                ("queue", pa.string()),
                ("payload", pa.large_binary()),
                ("content_type", pa.string()),
                ("key", pa.string()),
                ("priority", pa.int32()),
            ]
        ),
    )


def test_rows_by_column_are_stored_as_drafts_are_for_many_queues_at_once(
    urls: list[str], hf: holdfast.Holdfast, loader: Loader
) -> None:
    texts = ["", "a", "é" * 200, "x" * 300]
    rows = [
        {
            "tenant": f"t{n % 3}",
            "queue": f"q{n % 7}",
            "payload": texts[n % 4].encode() + b"%d" % n,
            "content_type": ["application/json", "application/octet-stream", "text/plain"][n % 3],
            "key": None if n % 5 == 0 else f"ключ-{n}",
            "priority": None if n % 2 else n % 256,
        }
        for n in range(200)
    ]
    assert loader.load_rows(columns_of(rows)) == 200
    assert loader.load_rows(columns_of([row for row in rows if row["key"]][::-1])) == 0

    for tenant, queue in {(row["tenant"], row["queue"]) for row in rows}:
        mine = [row for row in rows if (row["tenant"], row["queue"]) == (tenant, queue)]
        found = hf.queue(queue, tenant=tenant).list(limit=1_000, payload=True)
        assert sorted((each.payload, each.content_type, each.priority) for each in found) == sorted(
            (row["payload"], row["content_type"], 100 if row["priority"] is None else row["priority"]) for row in mine
        )
        stats = hf.queue(queue, tenant=tenant).stats()
        assert (stats.ready, stats.bytes) == (len(mine), sum(len(row["payload"]) for row in mine))
    assert sum(row["n"] for row in rows_of(urls, "SELECT count(DISTINCT seq) AS n FROM journal")) == 200


def test_a_key_offered_twice_in_one_load_by_column_goes_to_the_first_of_its_rows_in_each_queue(
    hf: holdfast.Holdfast, loader: Loader
) -> None:
    rows = [{"queue": queue, "payload": b"%d" % n, "key": "k"} for queue in ("in", "out") for n in range(3)]
    assert loader.load_rows(columns_of(rows)) == 2
    assert payloads(hf) == payloads(hf, QueueRef("default", "out")) == [b"0"]


def test_a_payload_that_goes_in_pieces_is_loaded_by_column_too(hf: holdfast.Holdfast, urls: list[str]) -> None:
    opened = Loader(urls, max_payload=64 << 20)
    large = bytes(PIECES_ABOVE + 1)
    rows = [
        {"payload": large, "key": "l"},
        {"payload": b"x", "key": "s"},
        {"queue": "out", "payload": b"y", "key": "s"},
    ]
    try:
        assert [opened.load_rows(columns_of(rows)) for _ in range(2)] == [3, 0]
    finally:
        opened.close()
    assert sorted(bytes(message.payload) for message in hf.queue("in").claim(10)) == [large, b"x"]
    assert payloads(hf, QueueRef("default", "out")) == [b"y"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"payload": b"x" * (MAX_PAYLOAD + 1)}, "the payload has"),
        ({"priority": 256}, "priority"),
        ({"priority": -1}, "priority"),
        ({"key": ""}, "key"),
        ({"key": "a\x00"}, "key"),
        ({"key": "é" * 257}, "key"),
        ({"queue": "no such name!"}, "queue"),
        ({"content_type": "a\nb"}, "content_type"),
    ],
)
def test_a_row_by_column_that_no_queue_can_hold_is_refused_by_its_name(
    loader: Loader, urls: list[str], wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(holdfast.HoldfastError, match=said):
        loader.load_rows(columns_of([{"payload": b"ok", "key": "ok"}, {"payload": b"x", "key": "k", **wrong}]))
    assert rows_of(urls, "SELECT 1 FROM items UNION ALL SELECT 1 FROM seen_keys UNION ALL SELECT 1 FROM queues") == []


def test_a_message_that_was_loaded_is_claimed_and_acked_as_any_other(hf: holdfast.Holdfast, loader: Loader) -> None:
    loader.load({REF: drafts_of(0, 50)})
    claimed = hf.queue("in").claim(100)
    for message in claimed:
        message.ack()
    assert sorted(message.payload for message in claimed) == sorted(f"m{n}".encode() for n in range(50))
    events = hf.journal(limit=1_000)
    assert [str(each.event) for each in events].count("enqueued") == 50
    assert len({each.seq for each in events}) == len(events) == 150
    # It is gone, and its key is not.
    assert loader.load({REF: drafts_of(0, 50)}) == 0
    assert hf.queue("in").stats().ready == 0


def test_a_key_is_stored_once_by_any_callers_and_calls(hf: holdfast.Holdfast, loader: Loader) -> None:
    hf.queue("in").enqueue([holdfast.NewMessage(f"m{n}".encode(), key=f"k{n:05}") for n in range(5)])
    assert loader.load({REF: [*drafts_of(0, 20), *drafts_of(10, 30)]}) == 25
    assert loader.load({REF: drafts_of(0, 40)}) == 10
    [again] = hf.queue("in").enqueue(holdfast.NewMessage(b"other", key="k00039"))
    assert again.duplicate
    assert payloads(hf) == sorted(f"m{n}".encode() for n in range(40))


def test_two_loads_of_the_same_rows_at_once_in_opposite_order_store_each_once(
    urls: list[str], hf: holdfast.Holdfast
) -> None:
    refs = [QueueRef("default", "in"), QueueRef("acme", "mail")]
    stored: list[int] = []

    def load(backwards: bool) -> None:
        opened = Loader(urls, max_payload=MAX_PAYLOAD)
        try:
            for part in range(4):
                rows = drafts_of(part * 100, part * 100 + 100)
                order = refs[::-1] if backwards else refs
                stored.append(opened.load(dict.fromkeys(order, rows[::-1] if backwards else rows)))
        finally:
            opened.close()

    loads = [threading.Thread(target=load, args=(backwards,)) for backwards in (False, True)]
    for each in loads:
        each.start()
    for each in loads:
        each.join()

    assert sum(stored) == 800
    for ref in refs:
        assert payloads(hf, ref) == sorted(f"m{n}".encode() for n in range(400))
        assert hf.queue(ref.queue, tenant=ref.tenant).stats().ready == 400


def test_a_key_is_forgotten_when_its_window_ends_and_not_kept_where_there_is_none(
    hf: holdfast.Holdfast, loader: Loader, urls: list[str]
) -> None:
    assert loader.load({REF: drafts_of(0, 3)}) == 3
    for url in urls:
        execute(url, "UPDATE seen_keys SET ends_at = 1 WHERE key = 'k00001'")
    assert loader.load({REF: drafts_of(0, 3)}) == 1
    hf.queue("in").set_policy(dedup_window_ms=0)
    assert loader.load({REF: drafts_of(2, 4)}) == 1  # the old key counts
    assert loader.load({REF: drafts_of(3, 4)}) == 1  # the new one was not kept


def test_rows_without_keys_come_as_often_as_they_are_loaded(hf: holdfast.Holdfast, loader: Loader) -> None:
    rows = [Draft(payload=b"x"), Draft(payload=b"y", key="k")]
    assert [loader.load({REF: rows}) for _ in range(2)] == [2, 1]
    assert payloads(hf) == [b"x", b"x", b"y"]


def test_a_quota_refuses_a_load_whole_and_leaves_nothing_behind(hf: holdfast.Holdfast, urls: list[str]) -> None:
    hf.tenant("acme").set(quotas={"max_messages": 25})
    opened = Loader(urls, max_payload=MAX_PAYLOAD)
    refs = [QueueRef("acme", f"q{n}") for n in range(4)]
    assert opened.load({refs[0]: drafts_of(0, 10)}) == 10
    with pytest.raises(holdfast.OverQuota, match="max_messages of 25"):
        opened.load({refs[1]: drafts_of(0, 16)})
    assert [each.queue for each in hf.queues("acme")] == ["q0"]
    assert rows_of(urls, "SELECT key FROM seen_keys WHERE key >= 'k00010'") == []
    # What is known takes no room.
    assert opened.load({refs[0]: drafts_of(0, 25)}) == 15
    assert hf.queue("q0", tenant="acme").stats().ready == 25
    opened.close()


def test_what_no_queue_can_hold_is_refused_by_its_name_before_anything_is_stored(
    hf: holdfast.Holdfast, loader: Loader, urls: list[str]
) -> None:
    for draft, said in (
        (Draft(payload=b"x" * (MAX_PAYLOAD + 1)), "the payload has"),
        (Draft(payload=b"x", priority=256), "priority"),
        (Draft(payload=b"x", key="a\x00"), "key"),
    ):
        with pytest.raises(holdfast.HoldfastError, match=said):
            loader.load({REF: [Draft(payload=b"ok", key="ok"), draft]})
    assert rows_of(urls, "SELECT 1 FROM items UNION ALL SELECT 1 FROM seen_keys UNION ALL SELECT 1 FROM queues") == []


def test_a_queue_that_is_being_deleted_takes_no_load(hf: holdfast.Holdfast, loader: Loader) -> None:
    loader.load({REF: drafts_of(0, 3)})
    hf.queue("in").claim()
    hf.queue("in").delete()
    with pytest.raises(holdfast.HoldfastError, match="being deleted"):
        loader.load({REF: drafts_of(3, 6)})


def test_rows_of_groups_keep_their_order(hf: holdfast.Holdfast, loader: Loader) -> None:
    assert loader.load({REF: drafts_of(0, 6, group="g")}) == 6
    assert loader.load({REF: drafts_of(0, 6, group="g")}) == 0
    got = []
    while found := hf.queue("in").claim(10):
        got += [each.payload for each in found]
        for each in found:
            each.ack()
    assert got == [f"m{n}".encode() for n in range(6)]


def test_a_load_whose_connection_dies_in_the_middle_stores_nothing_and_all_of_it_when_run_again(
    hf: holdfast.Holdfast, urls: list[str]
) -> None:
    """It is cut off when its keys are written, and it waits for the tenant's row to check the quota."""
    hf.tenant("acme").set(quotas={"max_messages": 1_000_000})
    refs = [QueueRef("acme", f"q{n}") for n in range(6)]
    for ref in refs:
        hf.queue(ref.queue, tenant="acme").set_policy(max_retries=5)
    rows = {ref: drafts_of(0, 20) for ref in refs}
    failed: list[BaseException] = []

    def load() -> None:
        opened = Loader(urls, max_payload=MAX_PAYLOAD)
        try:
            opened.load(rows)
        except holdfast.StoreUnavailable as error:
            failed.append(error)
        finally:
            opened.close()

    async def cut() -> None:
        held = [await asyncpg.connect(url, server_settings={"search_path": "holdfast"}) for url in urls]
        for each in held:
            await each.execute("BEGIN; SELECT 1 FROM tenants WHERE tenant = 'acme' FOR UPDATE")
        thread = threading.Thread(target=load)
        thread.start()
        victim = None
        ends = time.monotonic() + 20
        while victim is None:
            assert time.monotonic() < ends, "the load did not wait for the tenant"
            await asyncio.sleep(0.02)
            for each in held:
                victim = victim or await each.fetchval(
                    "SELECT pid FROM pg_stat_activity WHERE datname LIKE 'loading_%' AND wait_event_type = 'Lock'"
                )
        assert await held[0].fetchval("SELECT pg_terminate_backend($1)", victim)
        thread.join()
        for each in held:
            await each.execute("ROLLBACK")
            await each.close()

    asyncio.run(cut())
    assert failed
    stored = sum(row["n"] for row in rows_of(urls, "SELECT count(*) AS n FROM items"))
    opened = Loader(urls, max_payload=MAX_PAYLOAD)
    assert opened.load(rows) == 120 - stored
    opened.close()
    for ref in refs:
        assert payloads(hf, ref) == sorted(f"m{n}".encode() for n in range(20))
        assert hf.queue(ref.queue, tenant="acme").stats().ready == 20


def test_a_claim_that_waits_elsewhere_is_woken_by_a_load(urls: list[str], loader: Loader) -> None:
    got: list[Any] = []
    with holdfast.open(",".join(urls), queue_poll_interval="1h") as hf:
        waiter = threading.Thread(target=lambda: got.extend(hf.queue("in").claim(wait=20)))
        waiter.start()
        wait_until(lambda: hf.tenant(REF.tenant).stats().waiters == 1)
        loader.load({REF: drafts_of(1, 2)})
        waiter.join()
    assert [each.payload for each in got] == [b"m1"]
