"""Saving a message's state document: under its lease, and only over the version that the caller has read."""

from msgspec.structs import replace

from holdfast.model.errors import Conflict, StaleLease
from holdfast.model.requests import StateChange, StateDocument


def saved(state: StateDocument, change: StateChange) -> StateDocument:
    """Return the state after a save.

    Progress alone keeps the document and its ETag. Raise `Conflict` if the stored ETag is another than the caller's.
    """
    if change.progress is not None:
        return replace(state, progress=change.progress)
    if change.etag != state.etag:
        raise Conflict(f"the state's ETag is {state.etag}, not {change.etag}: read it again", etag=state.etag)
    return replace(state, document=change.document, etag=str(int(state.etag or 0) + 1))


def lease_lost(id: int) -> StaleLease:
    """Return the refusal of a save whose receipt does not hold the message."""
    return StaleLease(f"the lease on {id} is no longer held by this receipt")
