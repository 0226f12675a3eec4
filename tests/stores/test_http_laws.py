"""The laws hold through a network: the public API over HTTP, a real server behind it, on the test's clock."""

import pytest

from holdfast.testing import Subject
from holdfast.testing.laws import StoreLaws
from tests.doors.serving import serve
from tests.stores.served import ServedSubject


class TestHttp(StoreLaws):
    @pytest.fixture
    def subject(self) -> Subject:
        return ServedSubject(serve)
