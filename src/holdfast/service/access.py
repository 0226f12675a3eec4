"""Who may ask: callers, their scopes, and what each operation needs."""

from enum import StrEnum

import msgspec

from holdfast.model.errors import Forbidden
from holdfast.model.names import DEFAULT

# The tenant of an operator: every tenant.
EVERY_TENANT = "*"


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asking, as its credential says. `admin` implies read and write."""

    tenant: str
    scopes: frozenset[Scope]
    # Who within the tenant: a token's subject, a certificate's name. Empty: nobody was asked to say.
    subject: str = ""

    @property
    def is_operator(self) -> bool:
        return self.tenant == EVERY_TENANT

    @property
    def own_tenant(self) -> str:
        """The tenant meant where none is named (SPEC 1.1)."""
        return DEFAULT if self.is_operator else self.tenant

    def has(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


# Whoever reaches a server with no identities configured: it listens on loopback alone.
ANYONE = Caller(tenant=EVERY_TENANT, scopes=ALL_SCOPES)


class Needs(msgspec.Struct, frozen=True):
    """What an operation asks of its caller, besides that the tenant is its own."""

    scope: Scope
    of_operators_only: bool = False


# Every operation of a session. One that is missing here is refused to all (and fails the matrix of tests).
NEEDS: dict[str, Needs] = {
    "enqueue": Needs(Scope.WRITE),
    "enqueue_each": Needs(Scope.WRITE),
    "upload": Needs(Scope.WRITE),
    "claim": Needs(Scope.READ),
    "settle": Needs(Scope.READ),
    "exchange": Needs(Scope.READ),
    "read_payload": Needs(Scope.READ),
    "read_part": Needs(Scope.READ),
    "save_state": Needs(Scope.READ),
    "subscribe": Needs(Scope.READ),
    "watch": Needs(Scope.READ),
    "held_by": Needs(Scope.READ),
    "get": Needs(Scope.READ),
    "peek": Needs(Scope.READ),
    "browse": Needs(Scope.READ),
    "stats": Needs(Scope.READ),
    "journal": Needs(Scope.READ),
    "ledger": Needs(Scope.READ),
    "ledger_ack": Needs(Scope.READ),
    "ledger_extend": Needs(Scope.READ),
    "tenants": Needs(Scope.READ),
    "tenant": Needs(Scope.READ),
    "set_tenant": Needs(Scope.ADMIN, of_operators_only=True),
    "tenant_stats": Needs(Scope.READ),
    "queues": Needs(Scope.READ),
    "queue": Needs(Scope.READ),
    "policy": Needs(Scope.READ),
    "set_policy": Needs(Scope.ADMIN),
    "pause": Needs(Scope.ADMIN),
    "delete": Needs(Scope.ADMIN),
    "schedules": Needs(Scope.READ),
    "schedule": Needs(Scope.READ),
    "set_schedule": Needs(Scope.ADMIN),
    "delete_schedule": Needs(Scope.ADMIN),
    "backup": Needs(Scope.ADMIN, of_operators_only=True),
    "metrics": Needs(Scope.READ, of_operators_only=True),
    "purge": Needs(Scope.ADMIN),
    "cancel": Needs(Scope.ADMIN),
    "reprioritise": Needs(Scope.ADMIN),
    "move": Needs(Scope.ADMIN),
    "remove": Needs(Scope.ADMIN),
    "redrive": Needs(Scope.ADMIN),
}


def permit(caller: Caller, operation: str, tenant: str | None) -> None:
    """`Forbidden`, in the same words whether or not the tenant or the queue exists. `tenant` None: of no tenant."""
    needs = NEEDS[operation]
    if tenant is not None and caller.tenant not in (tenant, EVERY_TENANT):
        raise Forbidden(f"this credential is not for tenant {tenant}", tenant=tenant)
    if needs.of_operators_only and not caller.is_operator:
        raise Forbidden("only an operator may do this: the credential's tenant must be *")
    if not caller.has(needs.scope):
        raise Forbidden(f"this needs the scope {needs.scope}, which the credential does not have", scope=needs.scope)
