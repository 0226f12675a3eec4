"""The journal of an object store in bulk, as Spark's sources read it."""

from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import InvalidArgument
from holdfast.pipeline.sources.options import StoreAddress
from holdfast.server.bulk import open_feed


def test_a_feed_gives_the_events_that_the_store_itself_gives_in_any_steps(tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    with holdfast.open(url, durability="os") as hf:
        for number in range(3):
            hf.queue("mail", tenant="acme").enqueue(number)
            hf.queue("mail", tenant="zeta").enqueue(number)
            hf.journal()
        for message in hf.queue("mail", tenant="acme").claim(limit=2):
            message.ack()
        expected = list(hf.journal())
    feed = open_feed(StoreAddress(url), None)
    count, end = feed.measure(None, 1_000, None)
    whole = [row for batch in feed.read(None, end) for row in batch.to_pylist()]
    assert count == len(whole) == len(expected) == 10
    assert [(row["seq"], row["event"], row["id"], row["tenant"]) for row in whole] == [
        (event.seq, event.event, event.id, event.tenant) for event in expected
    ]
    steps, at = [], None
    while (step := feed.measure(at, 3, None))[0]:
        steps += [row["seq"] for batch in feed.read(at, step[1]) for row in batch.to_pylist()]
        at = step[1]
    assert steps == [row["seq"] for row in whole]
    assert feed.measure(end, 10, None) == (0, end)
    feed.close()
    of_one = open_feed(StoreAddress(url), "acme")
    assert of_one.measure(None, 1_000, None)[0] == 7
    of_one.close()


def test_a_place_without_a_store_has_no_journal(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no store"):
        open_feed(StoreAddress((tmp_path / "nothing").as_uri()), None)
