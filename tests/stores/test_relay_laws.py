"""The laws hold through a door process: over HTTP, with the link to the store process behind it."""

from functools import partial

import pytest

from holdfast.testing import Subject
from holdfast.testing.laws import StoreLaws
from tests.doors.serving import serve
from tests.stores.served import ServedSubject


@pytest.mark.slow
class TestRelay(StoreLaws):
    @pytest.fixture
    def subject(self) -> Subject:
        return ServedSubject(partial(serve, is_relayed=True))
