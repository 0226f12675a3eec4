"""The target of a client command: read from flags, `HOLDFAST_*` variables, and the `[client]` table of a TOML file."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.failures import Usage
from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.store_url import parse_store_url

# The address on which `holdfast serve` listens by default.
DEFAULT_URL = "http://127.0.0.1:7077"
CONFIG_VARIABLE = "HOLDFAST_CONFIG"
TABLE = "client"
NAMES = ("url", "token", "tenant")
# Variables of the client itself. Any other may be a setting of an embedded store.
_VARIABLES = frozenset({CONFIG_VARIABLE, *(f"HOLDFAST_{name.upper()}" for name in NAMES)})


@dataclass(frozen=True, slots=True)
class ClientTarget:
    """The store or server that a command uses, and the caller's token and tenant."""

    url: str = DEFAULT_URL
    token: str | None = field(default=None, repr=False)
    tenant: str = "default"
    # Where each value was given. A name that is missing here has its default.
    origins: Mapping[str, str] = field(default_factory=dict)
    # Settings for opening an embedded store, from variables and the file.
    store: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_server(self) -> bool:
        """Return True for a server over HTTP."""
        return self.url.lower().startswith(("http://", "https://"))

    @property
    def is_remote(self) -> bool:
        """Return True for a server over any protocol. It has its own settings, and identifies its callers by tokens."""
        return parse_store_url(self.url).is_server

    @property
    def is_directory(self) -> bool:
        """Return True for the directory of an embedded store."""
        return "://" not in self.url

    def origin(self, name: str) -> str:
        """Describe where a value was given."""
        return self.origins.get(name, "default")

    def open_settings(self) -> dict[str, Any]:
        """Return the keyword arguments for `holdfast.open`."""
        return {"token": self.token} if self.is_remote else dict(self.store)


def resolve_target(
    flags: Mapping[str, str | None], environment: Mapping[str, str], config: str | None = None
) -> ClientTarget:
    """Return the target. A flag takes precedence over a variable, and a variable over the file."""
    file = config or environment.get(CONFIG_VARIABLE) or None
    given: dict[str, tuple[str, str]] = {} if file is None else _from_file(file)
    for name in NAMES:
        variable = f"HOLDFAST_{name.upper()}"
        # An empty token counts as missing: CI sets the variable to "" in forks, which do not get the secret.
        if variable in environment and (environment[variable] or name != "token"):
            given[name] = (environment[variable], f"variable {variable}")
        if (flag := flags.get(name)) is not None:
            given[name] = (flag, f"flag --{name}")
    for name, (value, origin) in given.items():
        if not value:
            raise Usage(f"{name} ({origin}) is empty: give a value, or omit it")
    url, url_origin = given.get("url", (DEFAULT_URL, "default"))
    _check_url(url, url_origin)
    token = given["token"][0] if "token" in given else None
    origins = {name: origin for name, (_, origin) in given.items()}
    tenant = given["tenant"][0] if "tenant" in given else None
    if tenant is None and token is not None and (tenant := tenant_of(token)) is not None:
        origins["tenant"] = "the token"
    target = ClientTarget(url, token, tenant or "default", origins)
    return target if target.is_remote else replace(target, store=_store_settings(environment, file))


def tenant_of(token: str) -> str | None:
    """Read the tenant from a token without verifying it. Return None for a token of every tenant, or an invalid one."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    tenant = claims.get("tenant") if isinstance(claims, dict) else None
    return tenant if isinstance(tenant, str) and tenant not in ("", "*") else None


def _check_url(url: str, origin: str) -> None:
    try:
        parse_store_url(url)
    except InvalidArgument as error:
        raise Usage(f"url ({origin}): {error.message}") from None


def _from_file(path: str) -> dict[str, tuple[str, str]]:
    import tomllib

    try:
        with Path(path).open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise Usage(f"config {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Usage(f"config {path} is not TOML: {error}") from None
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        raise Usage(f"{TABLE} in {path} is not a table: write [{TABLE}], followed by {', '.join(NAMES)}")
    given: dict[str, tuple[str, str]] = {}
    for key, value in table.items():
        origin = f"key {TABLE}.{key} in {path}"
        if key not in NAMES:
            raise Usage(f"{key!r} in [{TABLE}] of {path} is unknown: the keys are {', '.join(NAMES)}")
        if not isinstance(value, str):
            raise Usage(f"{key} ({origin}) is not a string: put the value in quotes")
        given[key] = (value, origin)
    return given


def _store_settings(environment: Mapping[str, str], file: str | None) -> dict[str, Any]:
    """Return the settings, such as durability, with which a server would open the same directory."""
    if file is None and not any(name.startswith("HOLDFAST_") and name not in _VARIABLES for name in environment):
        return {}  # spares the import of the server's settings sources
    from holdfast.server.settings import EMBEDDED, SETTINGS
    from holdfast.server.sources import load_settings

    variables = {SETTINGS[name].variable for name in EMBEDDED}
    given = {name: value for name, value in environment.items() if name in variables}
    try:
        loaded = load_settings({}, given, config=file)
    except InvalidArgument as error:
        raise Usage(error.message) from None
    settings: dict[str, Any] = {}
    for name, setting in loaded.given():
        if name in EMBEDDED:
            value = getattr(loaded.settings, setting.field)
            settings[name] = f"{value}ms" if setting.field.endswith("_ms") else value
    return settings
