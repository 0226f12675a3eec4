"""The rights that a credential grants."""

from enum import StrEnum


class Scope(StrEnum):
    """A right to use the API; `admin` includes the other two."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)
