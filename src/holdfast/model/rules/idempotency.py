"""Idempotency keys: a draft with a key that was used within the queue's window is a duplicate, not a new message."""

from collections.abc import Container, Mapping, Sequence

from msgspec.structs import replace

from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft


def index_keys(drafts: Sequence[Draft]) -> dict[str, int]:
    """Return the index of the first draft with each key."""
    firsts: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        if draft.key is not None:
            firsts.setdefault(draft.key, index)
    return firsts


def find_new(
    drafts: Sequence[Draft], firsts: Mapping[str, int], seen: Container[str], *, remembers_keys: bool
) -> Sequence[int]:
    """Return the indexes of the drafts that become new messages; the other drafts are duplicates.

    Args:
        firsts: The result of `index_keys`.
        seen: The keys that the queue remembers. Every draft with one of them is a duplicate.
        remembers_keys: False if the queue's window is 0. A key may then occur several times in one call.
    """
    if not firsts:
        return range(len(drafts))
    return [
        index
        for index, draft in enumerate(drafts)
        if draft.key is None or (draft.key not in seen and (firsts[draft.key] == index or not remembers_keys))
    ]


def make_results(
    drafts: Sequence[Draft], new: Sequence[int], ids: Sequence[int], seen: Mapping[str, Enqueued]
) -> list[Enqueued]:
    """Return the result of each draft.

    Args:
        new: The indexes of the drafts that became messages, as `find_new` returned them.
        ids: The ids of these messages.
        seen: The first message with each key that the queue remembers.
    """
    made = [
        Enqueued(snowflake=id, given_correlation_id=drafts[index].correlation_id)
        for index, id in zip(new, ids, strict=True)
    ]
    if len(made) == len(drafts):
        return made
    first_of_key = dict(seen)
    by_index = dict(zip(new, made, strict=True))
    for index, enqueued in by_index.items():
        key = drafts[index].key
        if key is not None:
            first_of_key.setdefault(key, enqueued)
    return [
        by_index[index] if index in by_index else replace(first_of_key[draft.key or ""], duplicate=True)
        for index, draft in enumerate(drafts)
    ]
