"""Checks of settings that are valid one by one, but not together."""

from typing import NamedTuple

from holdfast.model.errors import InvalidArgument
from holdfast.server.sources import LoadedSettings


class _Need(NamedTuple):
    setting: str
    # One of these is enough.
    of: tuple[str, ...]
    why: str


_KEYS = ("jwt_secret", "jwt_secret_file", "jwt_keys")
_IDENTITIES = (*_KEYS, "mtls_tenants")
_NEEDS = (
    _Need("tls_key", ("tls_cert",), "it is the key of that certificate"),
    _Need("tls_client_ca", ("tls_cert",), "client certificates are presented over TLS"),
    _Need("tls_client_ca", ("mtls_tenants", *_KEYS), "otherwise no caller could be assigned to a tenant"),
    _Need("mtls_tenants", ("tls_client_ca",), "otherwise no certificate could be verified"),
    _Need("redis_url", ("wal_dir",), "messages that are only in Redis would be lost with it"),
    _Need("wal_dir", ("redis_url",), "other servers find the messages of the log there"),
    # An operator who sets these expects tokens to be verified.
    _Need("jwt_issuer", _KEYS, "otherwise no token could be verified"),
    _Need("jwt_audience", _KEYS, "otherwise no token could be verified"),
    _Need("metrics_token", _IDENTITIES, "otherwise anyone may read the metrics without it"),
    _Need("metrics_token_file", _IDENTITIES, "otherwise anyone may read the metrics without it"),
)


def check_startable(loaded: LoadedSettings) -> None:
    """Raise `InvalidArgument` for a setting that would have no effect because another one is missing."""
    for need in _NEEDS:
        if need.setting in loaded.origins and not any(name in loaded.origins for name in need.of):
            raise InvalidArgument(
                f"{need.setting} ({loaded.origin(need.setting)}) also needs {' or '.join(need.of)}: {need.why}",
                setting=need.setting,
            )
