"""The documents of the compatible door. Here a tenant is a namespace, a queue is a topic and an id is a number."""

from msgspec import Struct

from holdfast.wire.http.bodies import Limit, Priority


class CompatibleItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message to enqueue. `payload` is base64, `deliver_after` an RFC 3339 timestamp with a time zone."""

    payload: str
    namespace: str | None = None
    topic: str | None = None
    priority: Priority | None = None
    deliver_after: str | None = None
    idempotency_key: str | None = None


class DequeueIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a dequeue by POST. A dequeue by GET has the same fields in its query."""

    namespace: str | None = None
    topic: str | None = None
    limit: Limit | None = None


class LeasedItem(Struct, frozen=True, kw_only=True, gc=False):
    """A claimed message."""

    id: int
    # The same id as text, for clients whose JSON numbers lose precision above 2**53.
    id_str: str
    payload: str
    lease_expires_at: str
    receipt: str
    priority: int
    attempt: int


class AckIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an ack. Without `receipt`, the caller must be the one that claimed the message."""

    id: int | str
    namespace: str | None = None
    topic: str | None = None
    receipt: str | None = None


class NackIn(AckIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a nack, with the error of the failure."""

    error: str | None = None
