"""From URLs to buckets."""

from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import InvalidArgument
from holdfast.stores.objects import make_bucket
from holdfast.stores.objects.buckets.cloud import CloudBucket
from holdfast.stores.objects.buckets.disk import DiskBucket


@pytest.mark.parametrize(
    "url",
    [
        *("file://", "file:///", "file://host/dir", "s3://", "s3:///prefix", "az://", "gs://"),
        *("s3://bucket?region=eu", "file:///dir#x", "s3://user:canary@bucket"),
    ],
)
def test_a_url_that_names_no_place_is_refused_and_shows_no_secret(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        make_bucket(url)
    assert refused.value.facts["field"] == "url"
    assert "canary" not in refused.value.message


def test_a_file_url_names_a_directory_with_any_characters(tmp_path: Path) -> None:
    bucket = make_bucket((tmp_path / "a dir %41").as_uri())
    assert isinstance(bucket, DiskBucket)
    assert bucket.root == tmp_path / "a dir %41"


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "gs://bucket/prefix"])
def test_a_bucket_is_named_by_its_cloud(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert isinstance(make_bucket(url), CloudBucket)


@pytest.mark.spec("6.4", "10.1")
def test_what_one_opening_of_a_directory_enqueued_another_claims(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    with holdfast.open(url) as first, holdfast.open(url) as second:
        [id] = first.queue("mail").enqueue({"to": "a"})
        [message] = second.queue("mail").claim()
        assert (message.id, message.json()) == (id, {"to": "a"})
        message.ack()
        assert first.queue("mail").stats().ready == 0
        assert first.queue("mail").claim() == []
