"""The rights that a credential grants."""

from enum import StrEnum


class Scope(StrEnum):
    """`admin` implies the other two."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)
