"""The documents of the compatible door (SPEC 8.3). Here a tenant is a namespace, a queue a topic, an id a number."""

from msgspec import Struct

from holdfast.wire.http.bodies import Limit, Priority


class CompatibleItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message to enqueue. `payload` is base64, `deliver_after` an instant of RFC 3339 with its zone."""

    payload: str
    namespace: str | None = None
    topic: str | None = None
    priority: Priority | None = None
    deliver_after: str | None = None
    idempotency_key: str | None = None


class DequeueIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a POST may say in its body instead of in its query."""

    namespace: str | None = None
    topic: str | None = None
    limit: Limit | None = None


class LeasedItem(Struct, frozen=True, kw_only=True, gc=False):
    id: int
    # For readers whose numbers are not that exact.
    id_str: str
    payload: str
    lease_expires_at: str
    receipt: str
    priority: int
    attempt: int


class AckIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `receipt` the caller must be the one that claimed the message."""

    id: int | str
    namespace: str | None = None
    topic: str | None = None
    receipt: str | None = None


class NackIn(AckIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    error: str | None = None
