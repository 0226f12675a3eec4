"""Parsing of verdicts, which are messages, receipts, or mappings with the field names of the HTTP API."""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.client.message import Message
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import Receipt
from holdfast.model.parsing.checks import plain
from holdfast.model.requests import Settle, Verdict, check_verdict

Settled = Message | Receipt | str
VerdictLike = Settled | Mapping[str, Any]

_FIELDS = ("receipt", "verdict", "error", "delay_ms", "defer", "final")
# Names that the checks of the model use, and the field of a mapping for each.
_NAMES = {"delay": "delay_ms"}
_VERDICTS = {each.value: each for each in (Settle.ACK, Settle.NACK, Settle.RELEASE)}


def receipt_of(given: Settled) -> Receipt:
    """Return the receipt of a message, or the given receipt. Raise `InvalidArgument` for malformed text."""
    return given._held.delivery.receipt if isinstance(given, Message) else Receipt.parse(given)


def parse_verdicts(given: Iterable[VerdictLike]) -> list[tuple[Message | None, Verdict]]:
    """Return each verdict, with its message if the caller gave one.

    Raise `InvalidArgument` for a malformed verdict. Its `field` has the verdict's index, as in `verdicts[2].error`.
    """
    every = [given] if isinstance(given, Message | Receipt | str | Mapping) else list(given)
    return [_parse_verdict(each, f"verdicts[{at}]") for at, each in enumerate(every)]


def _parse_verdict(given: object, where: str) -> tuple[Message | None, Verdict]:
    if isinstance(given, Message | Receipt | str):
        return _message_or_none(given), Verdict(settle=Settle.ACK, receipt=_parse_receipt(given, where))
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"{where} is a {type(given).__name__}: give a message, a receipt or a mapping of {', '.join(_FIELDS)}",
            field=where,
        )
    for name in given:
        if name not in _FIELDS:
            shown = str(name)[:80]
            raise InvalidArgument(
                f"{where}: {shown!r} is not a field of a verdict; the fields are {', '.join(_FIELDS)}",
                field=f"{where}.{shown}",
            )
    for name in ("receipt", "verdict"):
        if name not in given:
            raise InvalidArgument(f"{where} has no {name}", field=f"{where}.{name}")
    kind = plain(given["verdict"])
    if not isinstance(kind, str) or kind not in _VERDICTS:
        raise InvalidArgument(
            f"{where}: {str(kind)[:80]!r} is not a verdict: give {', '.join(_VERDICTS)}", field=f"{where}.verdict"
        )
    for name in ("defer", "final"):
        if not isinstance(given.get(name, False), bool):
            raise InvalidArgument(f"{where}: {name} must be True or False", field=f"{where}.{name}")
    verdict = Verdict(
        settle=_VERDICTS[kind],
        receipt=_parse_receipt(given["receipt"], where),
        error=plain(given.get("error")),
        delay_ms=plain(given.get("delay_ms")),
        defer=given.get("defer", False),
        final=given.get("final", False),
    )
    try:
        check_verdict(verdict)
    except InvalidArgument as error:
        field = str(error.facts.get("field"))
        raise InvalidArgument(f"{where}: {error.message}", field=f"{where}.{_NAMES.get(field, field)}") from None
    return _message_or_none(given["receipt"]), verdict


def _message_or_none(given: object) -> Message | None:
    return given if isinstance(given, Message) else None


def _parse_receipt(given: Any, where: str) -> Receipt:
    try:
        return receipt_of(given)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.message}", field=f"{where}.receipt") from None
