"""Extras are found, or named by the error for a missing one."""

import pytest

from holdfast.model import extras
from holdfast.model.extras import MissingExtra, explain_import, has_extra, is_installed, require_extra


def test_a_module_of_a_missing_package_is_not_installed() -> None:
    assert not is_installed("no_such_package.module")
    assert not is_installed("no_such_module")
    assert is_installed("google.protobuf")


def test_the_missing_module_of_a_namespace_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.MODULES, "objects", ("google.no_such_module",))

    assert not has_extra("objects")
    with pytest.raises(MissingExtra, match=r"holdfast\[objects\]"):
        require_extra("objects", "an object store")
    explained = explain_import(ModuleNotFoundError(name="google.no_such_module"))
    assert explained is not None
    assert "holdfast[objects]" in str(explained)
    assert explain_import(ModuleNotFoundError(name="google")) is not None


def test_a_failed_import_of_an_installed_module_names_no_extra() -> None:
    assert explain_import(ModuleNotFoundError(name="google.protobuf.internal")) is None
    assert explain_import(ModuleNotFoundError(name="no_such_module")) is None
