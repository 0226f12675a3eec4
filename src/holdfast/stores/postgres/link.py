"""The link to asyncpg's loop; every store with a driver of its own has the same."""

from holdfast.stores.link import Link

__all__ = ["Link"]
