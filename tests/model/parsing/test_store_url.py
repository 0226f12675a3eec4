"""The argument of `open`: directories and URLs are accepted; other text is refused, and no directory is created."""

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import holdfast
from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.store_url import UrlKind, parse_store_url

MISTYPED = {
    "localhost:7077": "http://localhost:7077",
    "127.0.0.1:7077": "http://127.0.0.1:7077",
    "[::1]:7077": "http://[::1]:7077",
    "::1": "http://[::1]:7077",
    "queue.example.com:80/prefix": "http://queue.example.com:80/prefix",
    "host:7077/": "http://host:7077/",
    ":7077": "http://localhost:7077",
    "//localhost:7077": "http://localhost:7077",
    "data:1": "http://data:1",
    "localhost": "http://localhost:7077",
    "10.0.0.7": "http://10.0.0.7:7077",
    "http//host": "http://host",
    "http:/host": "http://host",
    "http:host": "http://host",
    "HTTP:/host:7077": "http://host:7077",
    "https:/host/x": "https://host/x",
    "htp:/host": "http://host",
    "htttp//host": "http://host",
    "capnp:host:7078": "capnp://host:7078",
    "memory:": "memory://",
    "memory:/": "memory://",
    "postgres//host/db": "postgres://host/db",
    "postgress:/host/db": "postgres://host/db",
    "s3:/bucket": "s3://bucket",
    "file:/var/data": "file:///var/data",
    "somewhere:/x": "http://somewhere/x",
}


@pytest.mark.parametrize("text", MISTYPED)
def test_a_host_or_a_mistyped_url_is_refused_with_the_right_spelling_and_makes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for opens in (holdfast.open, holdfast.open_async):
        with pytest.raises(InvalidArgument) as refused:
            opens(text)
        assert f"write {MISTYPED[text]}, or ./{text.lstrip('/')} for a directory" in refused.value.message
        assert refused.value.facts["field"] == "url"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("htp://x", "http://x"),
        ("htpps://x", "https://x"),
        ("postgress://x", "postgres://x"),
        ("ftp://x", None),
        (" http://x", "http://x"),
        ("://x", None),
        ("redis://x", None),
    ],
)
def test_an_unknown_scheme_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, meant: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="is not a scheme this version knows") as refused:
        holdfast.open(text)
    assert (f"did you mean {meant}?" in refused.value.message) if meant else "did you mean" not in refused.value.message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["ada:secret@host:5432/db", "redis://ada:secret@host", "http:/ada:secret@host"])
def test_a_password_in_a_refused_text_is_not_repeated(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_store_url(text)
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("given", ["", "  ", None, 7, b"data", Ellipsis])
def test_what_is_no_text_and_no_path_is_refused(given: Any) -> None:
    for opens in (holdfast.open, holdfast.open_async):
        with pytest.raises(InvalidArgument, match="give a directory, memory://"):
            opens(given)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "data",
            "./data",
            "../data",
            "/var/data",
            "//var/data",
            "a/b:1/c",
            "C",
            "C:",
            "C:/x",
            "http",
            "memory",
            "x.y",
        ),
        *(
            "./localhost:7077",
            "./http:/host",
            "../name:1",
            "/srv/name:1",
            "data//sub",
            "2026-11-17T10:18:12Z",
            "~",
            "a b",
        ),
        *("jobs:blue", "data.db", "host.example.com"),
    ],
)
def test_the_path_of_a_directory_stays_one(path: str) -> None:
    assert parse_store_url(path) == (UrlKind.DIRECTORY, path)


def test_a_url_as_a_path_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'http:/host:7077' is a URL in a path object: give the URL as text"):
        holdfast.open(Path("http://host:7077"))


@pytest.mark.parametrize("name", ["data", "localhost:7077", "name:1", "host:1/store"])
@pytest.mark.parametrize("kind", [Path, PurePosixPath])
def test_a_path_is_a_directory_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[PurePosixPath]
) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open(kind(name)) as hf:
        hf.queue("mail").enqueue(b"x")
    assert (tmp_path / name).is_dir()
    with holdfast.open(kind(tmp_path) / name) as hf:
        assert hf.queue("mail").stats().ready == 1


async def test_a_path_is_a_directory_for_the_async_client_and_the_worker_too(tmp_path: Path) -> None:
    async with holdfast.open_async(tmp_path / "store") as hf:
        await hf.queue("mail").enqueue(b"x")
    handled = []
    worker = holdfast.Worker(tmp_path / "store")

    @worker.handler("mail")
    async def handle(payload: bytes) -> None:
        handled.append(payload)
        worker.stop()

    await worker.serve()
    assert handled == [b"x"]
