"""Callers, their scopes, and the check that every operation begins with."""

from typing import Any

import msgspec

from holdfast.model.errors import Forbidden
from holdfast.model.names import DEFAULT
from holdfast.model.scopes import ALL_SCOPES, Scope
from holdfast.wire.operation import Operation

# The tenant of an operator: every tenant.
EVERY_TENANT = "*"


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


def permit(caller: Caller, operation: Operation[Any, Any], tenant: str | None) -> None:
    """Raise `Forbidden`, in the same words whether or not the tenant or the queue exists. `tenant` is None for an
    operation of no tenant."""
    if tenant is not None and caller.tenant not in (tenant, EVERY_TENANT):
        raise Forbidden(f"this credential is not for tenant {tenant}", tenant=tenant)
    if operation.is_operators_only and not caller.is_operator:
        raise Forbidden("only an operator may do this: the credential's tenant must be *")
    if not caller.has(operation.scope):
        scope = operation.scope
        raise Forbidden(f"this needs the scope {scope}, which the credential does not have", scope=scope)
