"""The laws hold through Cap'n Proto RPC: the public API over it, a real door behind it, on the test's clock."""

import pytest

from holdfast.testing import Subject
from holdfast.testing.laws import StoreLaws
from tests.doors.capnp_serving import serve_capnp
from tests.stores.served import ServedSubject


@pytest.mark.slow
class TestCapnp(StoreLaws):
    @pytest.fixture
    def subject(self) -> Subject:
        return ServedSubject(serve_capnp)
