"""A call that got no answer, and the error that its caller is given for it."""

from holdfast.model.errors import StoreUnavailable


class Lost(Exception):
    """A call that got no answer. `was_sent`: the server may have carried it out."""

    def __init__(self, reason: str, *, was_sent: bool, is_timeout: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent
        self.is_timeout = is_timeout


class Reused(Lost):
    """Lost on a connection that had been idle, before a byte of an answer."""


def lost_error(
    url: str, lost: Lost, *, is_repeatable: bool, was_answered: bool, is_unsure: bool, is_cut: bool = False
) -> StoreUnavailable:
    """Return the error for a call without an answer; its `outcome` tells programs whether it may have happened.

    `is_unsure`: this try, or an earlier one, may have been carried out. `is_cut`: not all of it was sent.
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
            f"{url} was lost in the middle of the payload: {lost.reason}. Nothing was enqueued: asking again is safe.",
            url=url,
            outcome=outcome,
        )
    unknown = (
        "Asking again is safe."
        if is_repeatable
        else "Whether the call was carried out is not known: look before repeating it, or give messages a key."
    )
    if url.startswith(("https:", "holdfasts:")) and not was_answered and not lost.is_timeout:
        # A server that turns a client away by its certificate says so after the client's handshake is over.
        unknown += " If the server asks for client certificates, give tls_cert and tls_key."
    return StoreUnavailable(f"{url} did not answer: {lost.reason}. {unknown}", url=url, outcome=outcome)
