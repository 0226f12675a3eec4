"""The laws hold through the framed protocol: the public API over it, a real door behind it, on the test's clock."""

import pytest

from holdfast.testing import Subject
from holdfast.testing.laws import StoreLaws
from tests.doors.framed.serving import serve_framed
from tests.stores.served import ServedSubject


@pytest.mark.slow
class TestFramed(StoreLaws):
    @pytest.fixture
    def subject(self) -> Subject:
        return ServedSubject(serve_framed)
