"""Whether the settings, each accepted by itself, make a server together."""

from typing import NamedTuple

from holdfast.model.errors import InvalidArgument
from holdfast.server.sources import LoadedSettings


class _Need(NamedTuple):
    setting: str
    # Any one of these will do.
    of: tuple[str, ...]
    why: str


_KEYS = ("jwt_secret", "jwt_secret_file", "jwt_keys")
_IDENTITIES = (*_KEYS, "mtls_tenants")
_NEEDS = (
    _Need("tls_key", ("tls_cert",), "it is a certificate's key"),
    _Need("tls_client_ca", ("tls_cert",), "client certificates are shown over TLS"),
    _Need("tls_client_ca", ("mtls_tenants", *_KEYS), "else no caller could say which tenant it is"),
    _Need("mtls_tenants", ("tls_client_ca",), "else no certificate could be checked"),
    _Need("redis_url", ("wal_dir",), "what is answered from Redis alone would be lost with it"),
    _Need("wal_dir", ("redis_url",), "other servers find there what is in the log"),
    # Whoever sets these believes that tokens are checked.
    _Need("jwt_issuer", _KEYS, "else no token could be checked"),
    _Need("jwt_audience", _KEYS, "else no token could be checked"),
    _Need("metrics_token", _IDENTITIES, "else anyone may read the metrics, with or without a token"),
    _Need("metrics_token_file", _IDENTITIES, "else anyone may read the metrics, with or without a token"),
)


def check_startable(loaded: LoadedSettings) -> None:
    """Raise `InvalidArgument` for a setting that would have no effect because another one is missing."""
    for need in _NEEDS:
        if need.setting in loaded.origins and not any(name in loaded.origins for name in need.of):
            raise InvalidArgument(
                f"{need.setting} ({loaded.origin(need.setting)}) needs {' or '.join(need.of)} besides: {need.why}",
                setting=need.setting,
            )
