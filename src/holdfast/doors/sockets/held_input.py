"""The part of held bytes that doors share: the name under which a connection waits for its turn."""

from holdfast.service.limits.request_turns import RequestTurns


class HeldInput:
    """Bytes of one connection that wait for a turn while several tenants take turns."""

    __slots__ = ("_name", "_turns")

    def __init__(self, turns: RequestTurns) -> None:
        self._turns = turns
        self._name = turns.name_connection()

    def note_tenant(self, tenant: str, credential: bytes | None) -> None:
        """Note the tenant of the current call and, if known, the verified credential that identifies it."""
        turns = self._turns
        if tenant != turns.tenant:
            turns.note(tenant)
        if tenant != self._name:
            self._name = tenant
            if credential is not None:
                turns.remember(credential, tenant)
