"""Callers, and the permission check with which every operation begins."""

from typing import Any

import msgspec

from holdfast.model.errors import Forbidden
from holdfast.model.names import DEFAULT
from holdfast.model.scopes import ALL_SCOPES, Scope
from holdfast.wire.operation import Operation

# The tenant in an operator's credential; it stands for all tenants.
EVERY_TENANT = "*"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of an operation, with the rights of its credential. `admin` implies read and write."""

    tenant: str
    scopes: frozenset[Scope]
    # The user within the tenant: the subject of a token, or the name in a certificate. Empty without authentication.
    subject: str = ""

    @property
    def is_operator(self) -> bool:
        """Return whether the caller may act for all tenants."""
        return self.tenant == EVERY_TENANT

    @property
    def own_tenant(self) -> str:
        """Return the tenant of a request that names none (SPEC 1.1)."""
        return DEFAULT if self.is_operator else self.tenant

    def has(self, scope: Scope) -> bool:
        """Return whether the caller has a scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


# Every caller of a server without authentication, which listens on loopback only.
ANYONE = Caller(tenant=EVERY_TENANT, scopes=ALL_SCOPES)


def permit(caller: Caller, operation: Operation[Any, Any], tenant: str | None) -> None:
    """Raise `Forbidden` if the caller may not carry out an operation.

    The error is the same whether or not the tenant or the queue exists. `tenant` is None for an operation that
    concerns no tenant.
    """
    if tenant is not None and caller.tenant not in (tenant, EVERY_TENANT):
        raise Forbidden(f"this credential is not for tenant {tenant}", tenant=tenant)
    if operation.is_operators_only and not caller.is_operator:
        raise Forbidden("only an operator may do this: use a credential with tenant *")
    if not caller.has(operation.scope):
        scope = operation.scope
        raise Forbidden(f"this needs scope {scope}: use a credential that has it", scope=scope)
