"""One setting: its declaration, its names, and the error for a value that is not accepted."""

from dataclasses import dataclass
from typing import Any

from holdfast.model.errors import InvalidArgument
from holdfast.server.kinds import Kind, NotAccepted, Url

PREFIX = "HOLDFAST_"


@dataclass(frozen=True, slots=True)
class Spec:
    """The part of a setting's declaration that its type and default do not say."""

    kind: Kind
    help: str
    group: str
    # The default in words, where it depends on other settings or on the machine.
    default_text: str | None = None
    # Also a setting of `holdfast.open`.
    is_embedded: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """A declared setting with its names, for code that handles all settings alike."""

    name: str
    field: str
    spec: Spec
    default: Any

    @property
    def kind(self) -> Kind:
        """The kind of its values."""
        return self.spec.kind

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The flag that sets it."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def default_text(self) -> str:
        """The default as help texts and documentation show it."""
        return self.spec.default_text or f"`{self.kind.show(self.default)}`"

    def parse(self, given: object, origin: str = "") -> Any:
        """Return the value. Raise `InvalidArgument`, which names the setting, the origin and the accepted form."""
        try:
            return self.kind.parse(given)
        except NotAccepted as error:
            said = "" if self.kind.is_secret else f" {_shown(self.kind, given)}"
            came_from = f" ({origin})" if origin else ""
            raise InvalidArgument(
                f"{self.name}{said}{came_from} is not accepted: give {self.kind.accepts}{self._hint(given, error)}",
                setting=self.name,
            ) from None

    def _hint(self, given: object, error: NotAccepted) -> str:
        if str(error):
            return f". {error}"
        if self.name == "port" and isinstance(given, str) and given.startswith(("tcp://", "udp://")):
            return (
                f". Kubernetes sets {self.variable} for a Service that is named holdfast: "
                "set enableServiceLinks: false in the pod, or give --port"
            )
        return ""


def _shown(kind: Kind, given: object) -> str:
    text = kind.show(given) if isinstance(kind, Url) and isinstance(given, str) else str(given)
    return repr(text if len(text) <= 80 else text[:77] + "...")
