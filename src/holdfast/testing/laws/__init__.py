"""The store laws: one suite, run unchanged by every store behind every door.

    class TestMyStore(StoreLaws):
        @pytest.fixture
        def subject(self) -> Subject:
            return EmbeddedSubject(MyStore)

They speak the public async API alone, and move time by the subject's clock.
"""

# ruff: noqa: E402  (the extra is named before an import fails for want of it)

from holdfast.model.extras import require_extra

require_extra("testing", "holdfast.testing.laws")

from holdfast.testing.laws.dead_letters import DeadLetterLaws
from holdfast.testing.laws.exchanges import ExchangeLaws
from holdfast.testing.laws.forks import ForkLaws
from holdfast.testing.laws.groups import GroupLaws
from holdfast.testing.laws.holders import HolderLaws
from holdfast.testing.laws.identity import IdentityLaws
from holdfast.testing.laws.inspection import InspectionLaws
from holdfast.testing.laws.journal import JournalLaws
from holdfast.testing.laws.leases import LeaseLaws
from holdfast.testing.laws.ledger import LedgerLaws
from holdfast.testing.laws.limits import LimitLaws
from holdfast.testing.laws.operations import OperationLaws
from holdfast.testing.laws.operators import OperatorLaws
from holdfast.testing.laws.order import OrderLaws
from holdfast.testing.laws.payloads import PayloadLaws
from holdfast.testing.laws.refusals import RefusalLaws
from holdfast.testing.laws.retries import RetryLaws
from holdfast.testing.laws.schedules import ScheduleLaws
from holdfast.testing.laws.state_documents import StateDocumentLaws
from holdfast.testing.laws.states import StateLaws
from holdfast.testing.laws.unwritable import UnwritableLaws
from holdfast.testing.laws.waiting import WaitingLaws
from holdfast.testing.laws.waking import WakingLaws

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
    """Everything a store must keep."""
