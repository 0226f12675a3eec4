"""The sources of settings: flags, `HOLDFAST_*` variables, and one TOML file, in this order of precedence."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.model.errors import InvalidArgument
from holdfast.server.kinds import Secret
from holdfast.server.setting import PREFIX, Setting
from holdfast.server.settings import SETTINGS, Settings

CONFIG_VARIABLE = PREFIX + "CONFIG"
CLIENT_TABLE = "client"

# Variables that are not settings of a server: those of other commands and of the tests, and those that `dequeue` sets
# for the next command.
_OTHERS = {
    CONFIG_VARIABLE,
    *(PREFIX + name for name in ("URL", "TOKEN", "TENANT", "DEBUG", "CONTEXT", "SEED", "PROOF_SCALE")),
    *(
        f"{PREFIX}QUEUE_{name}"
        for name in (
            *("TENANT", "NAME", "MESSAGE_ID", "RECEIPT", "CORRELATION_ID"),
            *("LEASE_EXPIRES_AT", "STATE_ETAG", "PAYLOAD_PATH", "ATTEMPT", "VERSION"),
        )
    ),
}
# Variables that Kubernetes sets in every pod for a Service named holdfast.
_KUBERNETES = re.compile(PREFIX + r"(SERVICE|PORT)_[A-Z0-9_]+")

# Each of these may be given in a file instead, named by the setting `…_file`.
_SECRETS_IN_FILES = ("jwt_secret", "metrics_token")

# A similar name is taken for a typing error: `HOLDFAST_JWT_SECRT` must not leave a server open.
_NEAR = 0.75


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a value. `rank` is 0 for a flag, 1 for a variable, 2 for the file; `text` is for people."""

    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings in force, and where each of them was given."""

    settings: Settings
    # By name; a setting that is not here has its default.
    origins: Mapping[str, Origin]
    warnings: list[str] = field(default_factory=list)

    def origin(self, name: str) -> str:
        return self.origins[name].text if name in self.origins else "default"

    def given(self) -> Iterator[tuple[str, Setting]]:
        """Return the settings that were given, by name."""
        return ((name, SETTINGS[name]) for name in self.origins)


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], *, config: str | None = None
) -> LoadedSettings:
    """Return the settings that flags, variables and the file give together.

    `flags` has the given flags by the names of their settings. Raise `InvalidArgument` for an unknown name or a value
    that is not accepted, with its origin.
    """
    file = config or environment.get(CONFIG_VARIABLE) or None
    given: dict[str, tuple[object, Origin]] = {}
    warnings: list[str] = []
    # In reverse order of precedence: later sources overwrite earlier ones.
    if file is not None:
        given.update(_from_file(file))
    given.update(_from_environment(environment, warnings))
    given.update((name, (value, Origin(0, f"flag {SETTINGS[name].flag}"))) for name, value in flags.items())

    values = {SETTINGS[name].field: SETTINGS[name].parse(value, origin.text) for name, (value, origin) in given.items()}
    origins = {name: origin for name, (_, origin) in given.items()}
    _keep_the_stronger("data", "store", values, origins)
    for secret in _SECRETS_IN_FILES:
        in_file = f"{secret}_file"
        _keep_the_stronger(secret, in_file, values, origins)
        if in_file in values:
            values[secret] = _read_secret(secret, values[in_file], origins[in_file])
    return LoadedSettings(Settings(**values), origins, warnings)


def _from_file(path: str) -> Iterator[tuple[str, tuple[object, Origin]]]:
    try:
        with Path(path).open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise InvalidArgument(f"config {path} cannot be read: {error.strerror}", setting="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"config {path} is not TOML: {error}", setting="config") from None
    # Client commands read this table of the same file.
    document.pop(CLIENT_TABLE, None)
    for key, value in document.items():
        origin = Origin(2, f"key {key} in {path}")
        if key not in SETTINGS:
            raise _unknown(f"{key!r} in {path}", key, _nearest(key.replace("-", "_").lower(), lambda each: each.name))
        yield key, (value, origin)


def _from_environment(
    environment: Mapping[str, str], warnings: list[str]
) -> Iterator[tuple[str, tuple[object, Origin]]]:
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    for variable, value in environment.items():
        setting = by_variable.get(variable)
        if setting is not None:
            yield setting.name, (value, Origin(1, f"variable {variable}"))
        elif variable.startswith(PREFIX) and variable not in _OTHERS and not _KUBERNETES.fullmatch(variable):
            near = _nearest(variable, lambda each: each.variable)
            if near is not None:
                raise _unknown(f"the variable {variable}", variable, near)
            warnings.append(f"the variable {variable} is not a setting and is ignored")


def _nearest(given: str, name_of: Any) -> str | None:
    names = [name_of(setting) for setting in SETTINGS.values()]
    # Compared without the prefix, which would make all of them similar.
    short = {name.removeprefix(PREFIX): name for name in names}
    found = difflib.get_close_matches(given.removeprefix(PREFIX), short, n=1, cutoff=_NEAR)
    return short[found[0]] if found else None


def _unknown(what: str, name: str, near: str | None) -> InvalidArgument:
    hint = f"did you mean {near}?" if near else f"the settings are {', '.join(SETTINGS)}"
    return InvalidArgument(f"{what} is not a setting: {hint}", setting=name)


def _keep_the_stronger(one: str, other: str, values: dict[str, Any], origins: dict[str, Origin]) -> None:
    """Drop one of two settings that exclude each other: the one from the source of lower precedence.

    Raise `InvalidArgument` if both are from the same source.
    """
    if one not in origins or other not in origins:
        return
    if origins[one].rank == origins[other].rank:
        raise InvalidArgument(
            f"{one} ({origins[one].text}) and {other} ({origins[other].text}) are both given: give one of them",
            setting=other,
        )
    weaker = max(one, other, key=lambda name: origins[name].rank)
    del values[SETTINGS[weaker].field], origins[weaker]


def _read_secret(name: str, path: str, origin: Origin) -> Secret:
    try:
        text = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidArgument(
            f"{name}_file {path!r} ({origin.text}) cannot be read: {why}", setting=f"{name}_file"
        ) from None
    if not text:
        raise InvalidArgument(f"{name}_file {path!r} ({origin.text}) is empty", setting=f"{name}_file")
    secret: Secret = SETTINGS[name].parse(text, f"{origin.text}, in the file {path}")
    return secret


def as_toml(loaded: LoadedSettings) -> str:
    """Return the settings in force as TOML, each with its origin. Secrets are masked."""
    lines: list[str] = []
    group = ""
    for setting in SETTINGS.values():
        if setting.spec.group != group:
            group = setting.spec.group
            lines.append(f"{'' if not lines else chr(10)}# {group}")
        lines.append(_toml_line(setting, getattr(loaded.settings, setting.field), loaded.origin(setting.name)))
    return "\n".join(lines)


def _toml_line(setting: Setting, value: Any, origin: str) -> str:
    if value is None:
        return f"# {setting.name}: {setting.default_text.replace('`', '')}"
    if isinstance(value, bool | int) and not setting.field.endswith("_ms"):
        shown = setting.kind.show(value)
        shown = shown if shown.isdigit() or isinstance(value, bool) else f'"{shown}"'
    else:
        shown = '"' + setting.kind.show(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{setting.name} = {shown}  # {origin}"
