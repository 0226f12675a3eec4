"""The store laws: one test suite that every store behind every door must pass unchanged.

    class TestMyStore(StoreLaws):
        @pytest.fixture
        def subject(self) -> Subject:
            return EmbeddedSubject(MyStore)

A law must not depend on a particular store: it uses only the public async API and the subject's clock.
Start in `lifecycle/states.py`; `testing/subject.py` describes the subject.
"""

# ruff: noqa: E402  (a missing extra is reported by name before an import fails)

from holdfast.model.extras import require_extra

require_extra("testing", "holdfast.testing.laws")

from holdfast.testing.laws.calling.identity import IdentityLaws
from holdfast.testing.laws.calling.limits import LimitLaws
from holdfast.testing.laws.calling.operations import OperationLaws
from holdfast.testing.laws.calling.payloads import PayloadLaws
from holdfast.testing.laws.calling.refusals import RefusalLaws
from holdfast.testing.laws.claiming.groups import GroupLaws
from holdfast.testing.laws.claiming.holders import HolderLaws
from holdfast.testing.laws.claiming.ledger import LedgerLaws
from holdfast.testing.laws.claiming.order import OrderLaws
from holdfast.testing.laws.claiming.waiting import WaitingLaws
from holdfast.testing.laws.claiming.waking import WakingLaws
from holdfast.testing.laws.lifecycle.dead_letters import DeadLetterLaws
from holdfast.testing.laws.lifecycle.exchanges import ExchangeLaws
from holdfast.testing.laws.lifecycle.leases import LeaseLaws
from holdfast.testing.laws.lifecycle.retries import RetryLaws
from holdfast.testing.laws.lifecycle.state_documents import StateDocumentLaws
from holdfast.testing.laws.lifecycle.states import StateLaws
from holdfast.testing.laws.lifecycle.unwritable import UnwritableLaws
from holdfast.testing.laws.operating.forks import ForkLaws
from holdfast.testing.laws.operating.inspection import InspectionLaws
from holdfast.testing.laws.operating.journal import JournalLaws
from holdfast.testing.laws.operating.operators import OperatorLaws
from holdfast.testing.laws.operating.schedules import ScheduleLaws

__all__ = ["StoreLaws"]


class StoreLaws(
    StateLaws,
    LeaseLaws,
    UnwritableLaws,
    ExchangeLaws,
    RetryLaws,
    DeadLetterLaws,
    OrderLaws,
    GroupLaws,
    WaitingLaws,
    WakingLaws,
    OperationLaws,
    PayloadLaws,
    IdentityLaws,
    StateDocumentLaws,
    InspectionLaws,
    HolderLaws,
    OperatorLaws,
    LedgerLaws,
    JournalLaws,
    RefusalLaws,
    LimitLaws,
    ScheduleLaws,
    ForkLaws,
):
    """All laws of a store. A test class for a store inherits them and provides the fixture `subject`."""
