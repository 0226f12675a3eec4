"""Where a client command finds its queues: flags, `HOLDFAST_*` variables, the `[client]` table of the TOML file."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.failures import Usage
from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.store_url import parse_store_url

# What `holdfast serve` listens on when nothing else is said.
DEFAULT_URL = "http://127.0.0.1:7077"
CONFIG_VARIABLE = "HOLDFAST_CONFIG"
TABLE = "client"
NAMES = ("url", "token", "tenant")


@dataclass(frozen=True, slots=True)
class ClientTarget:
    url: str = DEFAULT_URL
    token: str | None = field(default=None, repr=False)
    tenant: str = "default"
    # Where each came from; what is not here has its default.
    origins: Mapping[str, str] = field(default_factory=dict)
    # Settings of an embedded store, from variables and the file.
    store: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_server(self) -> bool:
        """By HTTP."""
        return self.url.lower().startswith(("http://", "https://"))

    @property
    def is_remote(self) -> bool:
        """A server's, by whichever door: it has settings of its own, and asks who is calling."""
        return parse_store_url(self.url).is_server

    @property
    def is_directory(self) -> bool:
        return "://" not in self.url

    def origin(self, name: str) -> str:
        return self.origins.get(name, "default")


def find_place(
    flags: Mapping[str, str | None], environment: Mapping[str, str], config: str | None = None
) -> ClientTarget:
    """The first of flag, variable and file that names a thing decides."""
    file = config or environment.get(CONFIG_VARIABLE) or None
    given: dict[str, tuple[str, str]] = {} if file is None else _from_file(file)
    for name in NAMES:
        variable = f"HOLDFAST_{name.upper()}"
        # An empty token is none: CI sets variables for secrets that a fork does not get.
        if variable in environment and (environment[variable] or name != "token"):
            given[name] = (environment[variable], f"variable {variable}")
        if (flag := flags.get(name)) is not None:
            given[name] = (flag, f"flag --{name}")
    for name, (value, origin) in given.items():
        if not value:
            raise Usage(f"{name} ({origin}) is empty: give a value, or leave it out")
    url, url_origin = given.get("url", (DEFAULT_URL, "default"))
    _check_url(url, url_origin)
    token = given["token"][0] if "token" in given else None
    origins = {name: origin for name, (_, origin) in given.items()}
    tenant = given["tenant"][0] if "tenant" in given else None
    if tenant is None and token is not None and (tenant := tenant_of(token)) is not None:
        origins["tenant"] = "the token"
    place = ClientTarget(url, token, tenant or "default", origins)
    return (
        place if place.is_remote else ClientTarget(url, token, tenant or "default", origins, _store(environment, file))
    )


def tenant_of(token: str) -> str | None:
    """The tenant that a token names, unless it is every tenant's. The server judges the token; this only reads it."""
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
        raise Usage(f"{TABLE} in {path} is not a table: write [{TABLE}], and below it {', '.join(NAMES)}")
    given: dict[str, tuple[str, str]] = {}
    for key, value in table.items():
        origin = f"key {TABLE}.{key} in {path}"
        if key not in NAMES:
            raise Usage(f"{key!r} in [{TABLE}] of {path} is not known: the keys are {', '.join(NAMES)}")
        if not isinstance(value, str):
            raise Usage(f"{key} ({origin}) is not accepted: give text")
        given[key] = (value, origin)
    return given


def _store(environment: Mapping[str, str], file: str | None) -> dict[str, Any]:
    """What a server would open the same directory with: durability and the like."""
    from holdfast.server.settings import EMBEDDED, SETTINGS
    from holdfast.server.sources import load_settings

    mine = {SETTINGS[name].variable for name in EMBEDDED}
    try:
        loaded = load_settings({}, {name: value for name, value in environment.items() if name in mine}, config=file)
    except InvalidArgument as error:
        raise Usage(error.message) from None
    settings: dict[str, Any] = {}
    for name, setting in loaded.given():
        if name in EMBEDDED:
            value = getattr(loaded.settings, setting.field)
            settings[name] = f"{value}ms" if setting.field.endswith("_ms") else value
    return settings
