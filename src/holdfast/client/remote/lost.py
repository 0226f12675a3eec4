"""Calls without a response, and the error that their caller gets."""

from holdfast.model.errors import StoreUnavailable


class Lost(Exception):
    """Raised for a call without a response. `was_sent`: the server may have carried it out."""

    def __init__(self, reason: str, *, was_sent: bool, is_timeout: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent
        self.is_timeout = is_timeout


class LostOnReuse(Lost):
    """Raised for a call on a connection that had been idle, which ended before the first byte of a response."""


def lost_error(
    url: str, lost: Lost, *, is_repeatable: bool, has_responded: bool, is_unsure: bool, is_cut: bool = False
) -> StoreUnavailable:
    """Return the error for a call without a response. Its `outcome` says whether the call may have been carried out.

    `is_unsure`: this try or an earlier one may have been carried out. `is_cut`: the request was not sent completely.
    """
    outcome = "unknown" if is_unsure else "nothing happened"
    if not lost.was_sent:
        return StoreUnavailable(
            f"cannot reach {url}: {lost.reason}. Is `holdfast serve` running there, and is the URL right?",
            url=url,
            outcome=outcome,
        )
    if is_cut and not is_unsure:
        return StoreUnavailable(
            f"{url} was lost in the middle of the payload: {lost.reason}. Nothing was enqueued. It is safe to retry.",
            url=url,
            outcome=outcome,
        )
    unknown = (
        "It is safe to retry."
        if is_repeatable
        else "The call may have been carried out: check before you repeat it, or give messages a key."
    )
    if url.startswith(("https:", "holdfasts:")) and not has_responded and not lost.is_timeout:
        # A server that rejects the client's certificate says so only after the client's part of the handshake.
        unknown += " If the server requires client certificates, give tls_cert and tls_key."
    return StoreUnavailable(f"{url} did not answer: {lost.reason}. {unknown}", url=url, outcome=outcome)
