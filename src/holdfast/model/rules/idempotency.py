"""Idempotency keys: a draft whose key was seen within the queue's window repeats the first message with that key."""

from collections.abc import Container, Mapping, Sequence

from msgspec.structs import replace

from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft


def first_of_keys(drafts: Sequence[Draft]) -> dict[str, int]:
    """Return the place of the first draft of each key."""
    firsts: dict[str, int] = {}
    for place, draft in enumerate(drafts):
        if draft.key is not None:
            firsts.setdefault(draft.key, place)
    return firsts


def new_places(
    drafts: Sequence[Draft], firsts: Mapping[str, int], seen: Container[str], *, remembers_keys: bool
) -> Sequence[int]:
    """Return the places of the drafts that become messages of their own; every other draft repeats a message.

    `firsts` comes from `first_of_keys`; `seen` are the keys that the queue still remembers, and each of them is a
    repetition. Within one call a key repeats itself only if the queue remembers keys at all: its window is not 0.
    """
    if not firsts:
        return range(len(drafts))
    return [
        place
        for place, draft in enumerate(drafts)
        if draft.key is None or (draft.key not in seen and (firsts[draft.key] == place or not remembers_keys))
    ]


def results_of(
    drafts: Sequence[Draft], places: Sequence[int], ids: Sequence[int], seen: Mapping[str, Enqueued]
) -> list[Enqueued]:
    """Return the result of each draft: those at `places` are new messages with these ids, the others duplicates.

    `seen` gives the first message of each key that the queue still remembers.
    """
    made = [
        Enqueued(snowflake=id, given_correlation_id=drafts[place].correlation_id)
        for place, id in zip(places, ids, strict=True)
    ]
    if len(made) == len(drafts):
        return made
    first_of_key = dict(seen)
    by_place = dict(zip(places, made, strict=True))
    for place, enqueued in by_place.items():
        key = drafts[place].key
        if key is not None:
            first_of_key.setdefault(key, enqueued)
    return [
        by_place[place] if place in by_place else replace(first_of_key[draft.key or ""], duplicate=True)
        for place, draft in enumerate(drafts)
    ]
