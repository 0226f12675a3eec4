"""Settings that are right one by one and wrong together do not start a server."""

import pytest

from holdfast.model.errors import InvalidArgument
from holdfast.server.checks import check_startable
from holdfast.server.sources import load_settings


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"tls_key": "k"}, "tls_cert"),
        ({"tls_client_ca": "a", "jwt_keys": "k"}, "tls_cert"),
        ({"tls_client_ca": "a", "tls_cert": "c"}, "mtls_tenants"),
        ({"mtls_tenants": "a=b", "tls_cert": "c"}, "tls_client_ca"),
        ({"jwt_issuer": "i"}, "jwt_secret"),
        ({"redis_url": "redis://h"}, "wal_dir"),
        ({"wal_dir": "d"}, "redis_url"),
        ({"jwt_audience": "a"}, "jwt_keys"),
        ({"metrics_token": "t" * 16}, "jwt_secret"),
    ],
)
def test_a_setting_without_its_other_half_is_refused(given: dict[str, str], missing: str) -> None:
    with pytest.raises(InvalidArgument, match=f"also needs .*{missing}"):
        check_startable(load_settings(given, {}))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"store": "memory://"},
        {"store": "postgres://h/a,postgres://h/b", "shard_map": "fnv-mod"},
        {"store": "postgres://h/a", "redis_url": "redis://h", "wal_dir": "d", "on_redis_down": "direct"},
        {"tls_cert": "c"},
        {"tls_cert": "c", "tls_key": "k", "jwt_keys": "k", "jwt_issuer": "i", "jwt_audience": "a"},
        {"tls_cert": "c", "tls_client_ca": "a", "mtls_tenants": "a=b"},
        {"tls_cert": "c", "tls_client_ca": "a", "jwt_secret": "s"},
        {"metrics_token": "t" * 16, "jwt_secret": "s"},
        {"metrics_public": "true"},
        {"queue_poll_interval": "1s", "disk_queue_watch": "false"},
    ],
)
def test_settings_that_go_together_start(given: dict[str, str]) -> None:
    check_startable(load_settings(given, {}))
