"""The public API describes itself: typed keywords, docstrings, and a `repr` that names the object."""

import inspect
from typing import Any, get_type_hints

import msgspec
import pytest

import holdfast
from holdfast.client.client import AsyncTenant
from holdfast.client.options import (
    LimitOptions,
    PolicyOptions,
    QuotaOptions,
    ServerOptions,
    StoreOptions,
    TenantOptions,
)
from holdfast.client.remote.settings import _SETTINGS as SERVER_SETTINGS
from holdfast.model.policy import Limits, QueuePolicy, Quotas, TenantConfig
from holdfast.server.settings import EMBEDDED

_PUBLIC = [
    holdfast.Holdfast,
    holdfast.AsyncHoldfast,
    holdfast.Queue,
    holdfast.AsyncQueue,
    holdfast.BlockingMessage,
    holdfast.AsyncMessage,
    holdfast.Message,
    AsyncTenant,
]


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


def _members(cls: type) -> list[tuple[str, Any]]:
    names = [name for name in dir(cls) if not name.startswith("_")]
    found = [(name, inspect.getattr_static(cls, name)) for name in names]
    return [(name, each) for name, each in found if callable(each) or isinstance(each, property)]


@pytest.mark.parametrize("cls", _PUBLIC, ids=lambda cls: cls.__name__)
def test_every_public_class_and_method_has_a_docstring(cls: type) -> None:
    assert cls.__doc__
    missing = [name for name, each in _members(cls) if not inspect.getdoc(getattr(cls, name, each))]
    assert missing == []


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


def test_a_repr_names_the_object() -> None:
    with holdfast.open("memory://") as hf:
        q = hf.queue("mail", tenant="acme")
        assert repr(q) == "<Queue acme/mail>"
        assert repr(hf.tenant("acme")) == "<Tenant acme>"
        assert repr(hf) == "<Holdfast open>"
        [id] = q.enqueue(b"")
        [message] = q.claim()
        assert repr(message) == f"<BlockingMessage {id} of acme/mail, attempt 1>"
    assert repr(hf) == "<Holdfast closed>"


async def test_a_repr_of_the_async_api_names_the_object() -> None:
    hf = holdfast.open_async("memory://")
    assert repr(hf) == "<AsyncHoldfast not connected>"
    async with hf:
        assert repr(hf) == "<AsyncHoldfast connected>"
        assert repr(hf.queue("mail")) == "<AsyncQueue default/mail>"
        assert repr(hf.tenant()) == "<AsyncTenant default>"
