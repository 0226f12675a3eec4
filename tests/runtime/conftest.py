"""A runtime for callers on threads, on clocks that stand still."""

from collections.abc import Iterator

import pytest

from holdfast.runtime import ThreadRuntime
from holdfast.testing import ManualClock


@pytest.fixture
def runtime() -> Iterator[ThreadRuntime]:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    yield runtime
    runtime.close()
