"""The public API describes itself: typed keywords, docstrings, and a `repr` that names the object."""

import inspect
from collections.abc import Iterator
from typing import Any, Protocol, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
import pytest

import holdfast
from holdfast.client.options import (
    LimitOptions,
    PolicyOptions,
    QuotaOptions,
    ServerOptions,
    StoreOptions,
    TenantOptions,
)
from holdfast.client.remote.settings import _SETTINGS as SERVER_SETTINGS
from holdfast.model.parsing.store_url import without_secrets
from holdfast.model.policy import Limits, QueuePolicy, Quotas, TenantConfig
from holdfast.server.settings import EMBEDDED

_FORBIDDEN = ("What", "Of", "Whoever", "Whether", "So", "As")


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, those that it inherits from our classes included."""
    for name in dir(cls):
        owner = next((each for each in cls.__mro__ if name in vars(each)), object)
        member = inspect.getattr_static(cls, name)
        is_call = isinstance(member, property | classmethod | staticmethod) or inspect.isroutine(member)
        if is_call and not name.startswith("_") and owner.__module__.partition(".")[0] == "holdfast":
            yield name, member


def _annotations(value: Any) -> Iterator[Any]:
    """Yield the types that the annotations of a class, method or property name."""
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    try:
        hints = get_type_hints(value)
    except (NameError, TypeError):
        return
    waiting = list(hints.values())
    while waiting:
        each = waiting.pop()
        waiting += get_args(each)
        yield get_origin(each) or each


def _public_classes() -> list[type]:
    """Return our classes that `holdfast.__all__` names, or that an annotation of a public object names."""
    found: dict[type, None] = {}
    waiting: list[Any] = [getattr(holdfast, name) for name in holdfast.__all__]
    while waiting:
        each = waiting.pop()
        if not inspect.isroutine(each) and not isinstance(each, type | property | classmethod | staticmethod):
            continue
        if isinstance(each, type):
            if each in found or each.__module__.partition(".")[0] != "holdfast":
                continue
            found[each] = None
            waiting += [member for _, member in _members(each)]
        waiting += _annotations(each)
    return sorted(found, key=lambda cls: cls.__qualname__)


_CLASSES = _public_classes()


def _doc_problem(name: str, doc: str | None) -> list[str]:
    if not doc:
        return [f"{name} has no docstring"]
    word = doc.split()[0].strip(",.:")
    return [f"the docstring of {name} begins with {word!r}"] if word in _FORBIDDEN else []


def test_the_public_surface_includes_the_objects_that_methods_return() -> None:
    names = {cls.__name__ for cls in _CLASSES}

    assert {
        "Queue",
        "Tenant",
        "BlockingMessage",
        "Stats",
        "Info",
        "QueuePolicy",
        "ScheduleInfo",
        "LedgerEntry",
    } <= names
    assert {"AsyncQueue", "AsyncTenant", "AsyncMessage", "Result", "BulkResult", "Page", "JournalEvents"} <= names
    assert {"EnqueueOptions", "OpenOptions", "PolicyOptions", "TenantOptions", "Worker", "Outcome"} <= names


def test_every_public_object_has_a_docstring_that_begins_like_a_sentence() -> None:
    problems = []
    for name in holdfast.__all__:
        problems += _doc_problem(f"holdfast.{name}", inspect.getdoc(getattr(holdfast, name)))
    for cls in _CLASSES:
        problems += _doc_problem(cls.__name__, cls.__doc__)
        for name, member in _members(cls):
            problems += _doc_problem(f"{cls.__name__}.{name}", inspect.getdoc(getattr(cls, name, member)))

    assert problems == []


def test_no_public_class_has_the_default_repr() -> None:
    made = [cls for cls in _CLASSES if not is_typeddict(cls) and Protocol not in cls.__bases__]

    assert [cls.__name__ for cls in made if cls.__repr__ is object.__repr__] == []


@pytest.mark.parametrize(
    ("options", "document"),
    [(PolicyOptions, QueuePolicy), (TenantOptions, TenantConfig), (LimitOptions, Limits), (QuotaOptions, Quotas)],
    ids=["policy", "tenant", "limits", "quotas"],
)
def test_the_typed_keywords_of_a_document_are_its_fields(options: type, document: type) -> None:
    assert set(get_type_hints(options)) == {field.name for field in msgspec.structs.fields(document)}


def test_the_typed_keywords_of_open_are_the_settings_of_a_store_and_of_a_server() -> None:
    assert set(StoreOptions.__annotations__) == {*EMBEDDED, "clock", "dice"}
    assert set(ServerOptions.__annotations__) == set(SERVER_SETTINGS)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("enqueue", ["key", "delay", "OverQuota", "q.enqueue("]),
        ("claim", ["wait", "lease", "for message in q.claim("]),
        ("nack", ["delay", "final"]),
        ("set_policy", ["InvalidArgument", "q.set_policy("]),
    ],
)
def test_both_apis_have_one_docstring(name: str, parts: list[str]) -> None:
    text = inspect.getdoc(getattr(holdfast.Queue, name))
    assert text == inspect.getdoc(getattr(holdfast.AsyncQueue, name))
    assert text is not None
    assert [part for part in parts if part not in text] == []


def test_a_repr_names_the_object_and_its_store() -> None:
    with holdfast.open("memory://") as hf:
        q = hf.queue("mail", tenant="acme")
        assert repr(q) == "<Queue acme/mail of memory://>"
        assert repr(hf.tenant("acme")) == "<Tenant acme of memory://>"
        assert repr(hf) == "<Holdfast of memory://>"
        [id] = q.enqueue(b"")
        [message] = q.claim()
        assert repr(message) == f"<BlockingMessage {id} of acme/mail, attempt 1>"
        worker = holdfast.Worker(hf, owner="w1")
        assert repr(worker) == "<Worker w1 of <Holdfast of memory://>, handlers of no queue>"
    assert repr(hf) == "<Holdfast of memory://, closed>"


async def test_a_repr_of_the_async_api_names_the_object_and_its_store() -> None:
    hf = holdfast.open_async("memory://")
    assert repr(hf) == "<AsyncHoldfast of memory://, not connected>"
    async with hf:
        assert repr(hf) == "<AsyncHoldfast of memory://>"
        assert repr(hf.queue("mail")) == "<AsyncQueue default/mail of memory://>"
        assert repr(hf.tenant()) == "<AsyncTenant default of memory://>"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:1/mount", "http://127.0.0.1:1/mount"),
        ("holdfast://127.0.0.1:1", "holdfast://127.0.0.1:1"),
    ],
)
def test_a_repr_names_the_server_and_no_secret(url: str, shown: str) -> None:
    with holdfast.open(url, token="s3cret") as hf:
        assert repr(hf.queue("mail")) == f"<Queue default/mail of {shown}>"
        assert "s3cret" not in repr(hf) + repr(hf.tenant())


def test_a_repr_shows_no_credential_of_a_store() -> None:
    hf = holdfast.open_async("postgres://app:s3cret@127.0.0.1:1/db?password=s3cret")

    assert repr(hf) == "<AsyncHoldfast of postgres://…@127.0.0.1:1/db, not connected>"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://u:p@h1/a,postgres://u:p@h2/b", "postgres://…@h2/b"),
        ("postgres://u:pa?ss@h/db", "postgres://…"),
        ("postgres://u:pa/ss@h/db", "postgres://…@h/db"),
        ("s3://bucket/prefix?secret=p", "s3://bucket/prefix"),
        ("az://account/container?password=a@b", "az://…"),
        ("./data@home?#", "./data@home?#"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
