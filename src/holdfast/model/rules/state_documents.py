"""The rule for saving the state document of a message: the caller must have read the version that it replaces."""

from msgspec.structs import replace

from holdfast.model.errors import Conflict, StaleLease
from holdfast.model.ids import to_uuid
from holdfast.model.requests import StateChange, StateDocument


def apply_state_change(state: StateDocument, change: StateChange) -> StateDocument:
    """Return the state after a save. Progress leaves the document and its ETag as they are.

    Raise `Conflict` if the stored ETag is not the caller's.
    """
    if change.progress is not None:
        return replace(state, progress=change.progress)
    if change.etag != state.etag:
        raise Conflict(f"the ETag of the state is {state.etag}, not {change.etag}: read it again", etag=state.etag)
    return replace(state, document=change.document, etag=str(int(state.etag or 0) + 1))


def lease_lost(id: int) -> StaleLease:
    """Return the error for a save with a receipt that does not hold the message."""
    return StaleLease(f"this receipt no longer holds the lease on {to_uuid(id)}", id=to_uuid(id))
