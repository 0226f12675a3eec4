"""Every setting, declared once: its name, kind, default and help.

Flags, variables, TOML keys, `--help`, docs/settings.md and the keywords of `holdfast.open` all come from here.
A duration's field carries the unit (`shutdown_grace_ms`); its name does not (`shutdown_grace`).
"""

import os
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from holdfast.dispatch.polling import default_max_consumers
from holdfast.model.errors import InvalidArgument
from holdfast.server.kinds import (
    BearerTokens,
    Boolean,
    Choice,
    Duration,
    Grants,
    HostNames,
    Integer,
    Secret,
    Secrets,
    Size,
    Text,
)
from holdfast.server.setting import Setting, Spec
from holdfast.server.store_settings import DEFAULT_DATA, StoreSettings

_MANY = 1_000_000


def _max_consumers() -> int:
    """Return the default for the number of processors that this process may use."""
    try:
        return default_max_consumers(len(os.sched_getaffinity(0)))
    except AttributeError:  # not on this platform
        return default_max_consumers(os.cpu_count() or 1)


def _path() -> Text:
    return Text("FILE", "a path")


# The groups of settings, as `--help` and docs/settings.md show them.
_network = partial(Spec, group="Network")
_identity = partial(Spec, group="Identity")
_queues = partial(Spec, group="Queues", is_embedded=True)
_operation = partial(Spec, group="Operation")


class Settings(StoreSettings, frozen=True, kw_only=True):
    """The settings of a server. An embedded core takes those marked `is_embedded`; the others have their defaults."""

    host: Annotated[str, _network(Text("HOST", "a host name or an address"), "Address or name to listen on.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _network(Integer(0, 65535), "Port to listen on; 0 for a free one.")] = 7077
    allowed_hosts: Annotated[
        tuple[str, ...] | None,
        _network(
            HostNames(),
            "Names that callers may use for the server (`Host`), besides loopback addresses, "
            "`localhost` and `host`; `*` for any.",
            default_text="none without identities; any with them",
        ),
    ] = None
    capnp_port: Annotated[
        int | None,
        _network(
            Integer(0, 65535),
            "Port of the Cap'n Proto door, besides HTTP; 0 for a free one.",
            default_text="none: no such door",
        ),
    ] = None
    framed_port: Annotated[
        int | None,
        _network(
            Integer(0, 65535),
            "Port of the framed protocol, besides HTTP, whose connections can be upgraded to it; 0 for a free one.",
            default_text="none: only by upgrade",
        ),
    ] = None
    processes: Annotated[
        int,
        _network(
            Integer(1, 64),
            "Number of processes that serve callers. With more than one, they share the ports, and "
            "the store stays in the process that was started.",
        ),
    ] = 1
    tls_cert: Annotated[
        str | None,
        _network(_path(), "File of the certificate chain (PEM). Serves HTTPS.", default_text="none: plain HTTP"),
    ] = None
    tls_key: Annotated[
        str | None,
        _network(_path(), "File of the certificate's private key (PEM).", default_text="in the file of `tls_cert`"),
    ] = None

    jwt_secret: Annotated[
        Secret | None,
        _identity(
            Secrets(),
            "Secret of HS256 tokens. Every user of the machine can see a flag: prefer the variable or"
            " `jwt_secret_file`.",
            default_text="none",
        ),
    ] = None
    jwt_secret_file: Annotated[
        str | None, _identity(_path(), "File with the secret of HS256 tokens.", default_text="none")
    ] = None
    jwt_keys: Annotated[
        str | None,
        _identity(
            Text("FILE|URL", "a path or an http(s) URL"),
            "Public keys that verify tokens: a PEM file, a JWKS file, or a JWKS URL.",
            default_text="none",
        ),
    ] = None
    jwt_issuer: Annotated[
        str | None, _identity(Text(), "Issuer (`iss`) that tokens must name.", default_text="any")
    ] = None
    jwt_audience: Annotated[str, _identity(Text(), "Audience (`aud`) that tokens must name.")] = "holdfast"
    tls_client_ca: Annotated[
        str | None,
        _identity(
            _path(),
            "File of the authorities (PEM) that sign client certificates. Unless tokens are "
            "configured, every client must present a certificate.",
            default_text="none",
        ),
    ] = None
    mtls_tenants: Annotated[
        dict[str, str] | None,
        _identity(
            Grants(),
            "Tenant, and scopes (`read+write`), of each client certificate, by its exact name (SAN).",
            default_text="none",
        ),
    ] = None
    metrics_token: Annotated[
        Secret | None,
        _identity(
            BearerTokens(),
            "Bearer token that permits only `GET /metrics`. Every user of the machine can see a flag:"
            " prefer the variable or `metrics_token_file`.",
            default_text="none: an operator's token",
        ),
    ] = None
    metrics_token_file: Annotated[str | None, _identity(_path(), "File with `metrics_token`.", default_text="none")] = (
        None
    )
    metrics_public: Annotated[
        bool, _identity(Boolean(), "Let anyone read `GET /metrics`, which names every tenant and queue.")
    ] = False

    auto_create: Annotated[bool, _queues(Boolean(), "Create a queue with its first message.")] = True
    max_payload: Annotated[int, _queues(Size(), "Maximum size of a payload.")] = 1 << 20
    queue_max_consumers: Annotated[
        int,
        _queues(
            Integer(1, _MANY),
            "Maximum number of claims that wait at once. Further ones are refused with `rate_limited`.",
            default_text="64 for each processor, from 128 to 4096",
        ),
    ] = msgspec.field(default_factory=_max_consumers)
    queue_poll_interval_ms: Annotated[
        int,
        _queues(Duration(), "How often waiting claims poll a store that other servers share (PostgreSQL, objects)."),
    ] = 3_000
    queue_poll_jitter_ms: Annotated[
        int, _queues(Duration(may_be_zero=True), "Maximum random delay added to each poll; 0 for none.")
    ] = 500
    queue_resilient_poll_interval_ms: Annotated[
        int,
        _queues(Duration(may_be_zero=True), "How often waiting claims poll a store that also wakes them; 0 for never."),
    ] = 300_000
    disk_queue_watch: Annotated[
        bool, _queues(Boolean(), "Watch the directory of an object store on disk instead of polling it.")
    ] = True
    clock_skew_ms: Annotated[
        int,
        _queues(
            Duration(may_be_zero=True),
            "Maximum difference of the clocks of processes that share an object store. Beyond it, a "
            "process claims nothing.",
        ),
    ] = 1_000
    disable_mem_queue_watch: Annotated[
        bool, _queues(Boolean(), "Poll the store in memory, as if it did not announce new messages.")
    ] = False

    shutdown_grace_ms: Annotated[
        int,
        _operation(
            Duration(may_be_zero=True), "Maximum time for a server that is stopping to finish the calls under way."
        ),
    ] = 30_000
    log_format: Annotated[
        Literal["console", "json"] | None,
        _operation(
            Choice("console", "json"),
            "Format of the log lines on stderr.",
            default_text="`console` on a terminal, else `json`",
        ),
    ] = None
    metrics_max_labels: Annotated[
        int,
        _operation(
            Integer(1, _MANY),
            "Maximum number of queues with their own metrics. The others are counted together as `other`.",
        ),
    ] = 1_000
    metrics_names: Annotated[
        Literal["names", "ids"],
        _operation(
            Choice("names", "ids"),
            "Name tenants and queues in metrics by their names or by their numbers. `GET /v1/names` has both.",
        ),
    ] = "names"

    @property
    def store_url(self) -> str:
        """The URL or directory of the store."""
        return self.store or self.data or DEFAULT_DATA

    @property
    def shown_store(self) -> str:
        """The URL or directory of the store, without a password."""
        return SETTINGS["store"].kind.show(self.store_url)

    @property
    def has_tokens(self) -> bool:
        """Return whether callers may present tokens."""
        return self.jwt_secret is not None or self.jwt_keys is not None

    @property
    def has_certificates(self) -> bool:
        """Return whether callers may present client certificates."""
        return self.tls_client_ca is not None and self.mtls_tenants is not None

    @property
    def has_scrapers(self) -> bool:
        """Return whether the metrics may be read without an identity."""
        return self.metrics_token is not None or self.metrics_public

    @property
    def has_identities(self) -> bool:
        """Return whether callers are authenticated."""
        return self.has_tokens or self.has_certificates

    def __repr__(self) -> str:
        shown = (
            f"{setting.name}={setting.kind.show(value)}"
            for setting in SETTINGS.values()
            if (value := getattr(self, setting.field)) is not None
        )
        return f"Settings({', '.join(shown)})"


def _declared() -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    hints = get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        [spec] = hints[field.encode_name].__metadata__
        name = field.name.removesuffix("_ms")
        settings[name] = Setting(name=name, field=field.name, spec=spec, default=field.default)
    return settings


SETTINGS: dict[str, Setting] = _declared()
EMBEDDED = [setting.name for setting in SETTINGS.values() if setting.spec.is_embedded]


def parse_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings of an embedded core. Raise `InvalidArgument` for an unknown name or a wrong value."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in EMBEDDED:
            raise InvalidArgument(
                f"{name!r} is not a setting of `open`; the settings are {', '.join(sorted(EMBEDDED))}", setting=name
            )
        setting = SETTINGS[name]
        fields[setting.field] = setting.parse(value)
    return Settings(**fields)
