"""The memory store keeps the laws."""

import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws import StoreLaws

WEEK_MS = 7 * 86_400_000


class TestMemoryStore(StoreLaws):
    @pytest.fixture
    def subject(self) -> Subject:
        return EmbeddedSubject(lambda dice: MemoryStore(dice, WEEK_MS))
