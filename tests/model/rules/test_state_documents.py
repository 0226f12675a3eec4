import pytest

from holdfast.model.errors import Conflict
from holdfast.model.ids import to_uuid
from holdfast.model.requests import NO_STATE, Progress, StateChange, StateDocument
from holdfast.model.rules.state_documents import apply_state_change, lease_lost

SAVED = StateDocument(document=b"1", etag="7", progress=Progress(percent=50))


def test_the_first_save_of_a_document_has_etag_1() -> None:
    assert apply_state_change(NO_STATE, StateChange(document=b"{}")) == StateDocument(document=b"{}", etag="1")


def test_a_save_over_the_etag_that_was_read_counts_it_up_and_keeps_the_progress() -> None:
    after = apply_state_change(SAVED, StateChange(document=b"2", etag="7"))
    assert after == StateDocument(document=b"2", etag="8", progress=SAVED.progress)


def test_progress_alone_keeps_the_document_and_its_etag() -> None:
    progress = Progress(percent=60, text="on")
    assert apply_state_change(SAVED, StateChange(progress=progress)) == StateDocument(
        document=b"1", etag="7", progress=progress
    )
    assert apply_state_change(NO_STATE, StateChange(progress=progress)) == StateDocument(progress=progress)


@pytest.mark.parametrize(("state", "etag"), [(SAVED, "6"), (SAVED, None), (NO_STATE, "1")])
def test_a_save_over_another_etag_is_a_conflict_that_names_the_stored_one(
    state: StateDocument, etag: str | None
) -> None:
    with pytest.raises(Conflict, match=f"the ETag of the state is {state.etag}, not {etag}: read it again") as refused:
        apply_state_change(state, StateChange(document=b"2", etag=etag))
    assert refused.value.facts["etag"] == state.etag


def test_a_save_without_the_lease_is_refused_by_the_id_of_its_message() -> None:
    assert str(lease_lost(5)) == f"this receipt no longer holds the lease on {to_uuid(5)}"
