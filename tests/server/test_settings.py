"""Settings: one declaration each, three places to give them, and refusals that say where and what instead."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import InvalidArgument
from holdfast.server.kinds import MASKED, Secret
from holdfast.server.setting import Setting
from holdfast.server.settings import EMBEDDED, SETTINGS, Settings, parse_settings
from holdfast.server.sources import LoadedSettings, as_toml, load_settings

# Of each setting three values that differ, as they are written, and some that it must refuse.
WRITTEN: dict[str, tuple[str, str, str]] = {
    "data": ("./one", "./two", "/three"),
    "store": ("memory://", "./two", "/three"),
    "durability": ("fsync", "os", "fsync"),
    "shards": ("1", "2", "3"),
    "stores": ("1", "2", "64"),
    "legacy_read_only": ("true", "false", "yes"),
    "checkpoint_bytes": ("1MiB", "512KiB", "4096"),
    "shard_map": ("slots", "fnv-mod", "slots"),
    "pg_pool": ("2", "8", "64"),
    "pg_lock_timeout": ("500ms", "2s", "1m"),
    "pg_statement_timeout": ("500ms", "30s", "5m"),
    "redis_url": ("redis://one", "rediss://two", "redis://three:6379/1"),
    "wal_dir": ("./one", "./two", "/three"),
    "on_redis_down": ("fail", "direct", "fail"),
    "flusher": ("server", "spark", "server"),
    "flush_interval": ("1ms", "2ms", "3ms"),
    "flush_batch": ("1", "2", "3"),
    "prefetch_batch": ("0", "2", "3"),
    "journal_retention": ("1d", "2h", "3m"),
    "reopen_after": ("1s", "500ms", "2m"),
    "host": ("127.0.0.1", "localhost", "::1"),
    "port": ("1", "2", "65535"),
    "allowed_hosts": ("queue.example", "one,two", "*"),
    "capnp_port": ("1", "2", "3"),
    "framed_port": ("1", "2", "3"),
    "processes": ("1", "2", "64"),
    "tls_cert": ("one.pem", "two.pem", "three.pem"),
    "tls_key": ("one.pem", "two.pem", "three.pem"),
    "jwt_secret": ("one" * 20, "two" * 20, "three" * 20),
    "jwt_secret_file": ("<secret 1>", "<secret 2>", "<secret 3>"),
    "jwt_keys": ("one.pem", "https://two.example/jwks", "three.json"),
    "jwt_issuer": ("one", "two", "three"),
    "jwt_audience": ("one", "two", "three"),
    "tls_client_ca": ("one.pem", "two.pem", "three.pem"),
    "mtls_tenants": ("a.example=acme", "spiffe://x/?a=b=globex:read", "a=acme,b=*:admin"),
    "metrics_token": ("one" * 20, "two" * 20, "three" * 20),
    "metrics_token_file": ("<token-1>", "<token-2>", "<token-3>"),
    "metrics_public": ("true", "false", "yes"),
    "auto_create": ("true", "false", "yes"),
    "max_payload": ("1MiB", "512KiB", "4096"),
    "queue_max_consumers": ("1", "200", "3000"),
    "queue_poll_interval": ("1s", "2500ms", "1.5m"),
    "queue_poll_jitter": ("0", "1ms", "2s"),
    "queue_resilient_poll_interval": ("0", "1h", "1d"),
    "disk_queue_watch": ("true", "false", "on"),
    "clock_skew": ("0", "250ms", "5s"),
    "disable_mem_queue_watch": ("true", "false", "1"),
    "shutdown_grace": ("0", "30s", "5m"),
    "log_format": ("console", "json", "console"),
    "metrics_max_labels": ("1", "2", "3"),
    "metrics_names": ("ids", "names", "ids"),
}
_NUMBERS = ("", "-1", "1.5", "ten", "0x10", "99999999999999999999", "\u0661")
_DURATIONS = ("", "3", "-3s", "3 weeks", "s", "1e400s", "0s.5")
WRONG: dict[str, tuple[str, ...]] = {
    "data": ("", "  ", "a\nb"),
    "store": ("", "ftp://x", "http://127.0.0.1:7077", "mem://"),
    "durability": ("", "none", "FSYNC"),
    "shards": (*_NUMBERS, "0"),
    "stores": (*_NUMBERS, "0", "65"),
    "legacy_read_only": ("", "perhaps", "2"),
    "checkpoint_bytes": ("", "0", "-1", "1MB/s", "many"),
    "shard_map": ("", "mod"),
    "pg_pool": (*_NUMBERS, "1"),
    "pg_lock_timeout": (*_DURATIONS, "0"),
    "pg_statement_timeout": (*_DURATIONS, "0"),
    "redis_url": ("", "host:6379", "http://x"),
    "wal_dir": ("",),
    "on_redis_down": ("", "retry"),
    "flusher": ("", "nobody"),
    "flush_interval": (*_DURATIONS, "0"),
    "flush_batch": (*_NUMBERS, "0"),
    "prefetch_batch": _NUMBERS,
    "journal_retention": (*_DURATIONS, "0"),
    "reopen_after": (*_DURATIONS, "0"),
    "host": ("", " "),
    "port": (*_NUMBERS, "65536", "tcp://10.0.0.1:7077"),
    "allowed_hosts": ("", ",", "queue.example:7077", "http://queue.example", "a..b", "a b", "[::g]"),
    "capnp_port": (*_NUMBERS, "65536"),
    "framed_port": (*_NUMBERS, "65536"),
    "processes": (*_NUMBERS, "0", "65"),
    "tls_cert": ("",),
    "tls_key": ("",),
    "jwt_secret": ("", "   "),
    "jwt_secret_file": ("",),
    "jwt_keys": ("",),
    "jwt_issuer": ("",),
    "jwt_audience": ("",),
    "tls_client_ca": ("",),
    "mtls_tenants": ("", "acme", "=acme", "a=", "a=x,a=y", "a=b/c", "a=acme:owner", "a=acme,"),
    "metrics_token": ("", "   ", "too short", "with a space in it, and long", "ünïcödeünïcödeünïcöde"),
    "metrics_token_file": ("",),
    "metrics_public": ("", "perhaps", "2"),
    "auto_create": ("", "perhaps", "2"),
    "max_payload": ("", "0", "-1", "1.5MiB", "1TiBs", "many", "9999999999GiB"),
    "queue_max_consumers": (*_NUMBERS, "0"),
    "queue_poll_interval": (*_DURATIONS, "0"),
    "queue_poll_jitter": _DURATIONS,
    "queue_resilient_poll_interval": _DURATIONS,
    "disk_queue_watch": ("", "perhaps"),
    "clock_skew": _DURATIONS,
    "disable_mem_queue_watch": ("", "perhaps"),
    "shutdown_grace": _DURATIONS,
    "log_format": ("", "xml"),
    "metrics_max_labels": (*_NUMBERS, "0"),
    "metrics_names": ("", "numbers"),
}

each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
Give = Callable[..., LoadedSettings]


@pytest.fixture
def give(tmp_path: Path) -> Give:
    """Load settings from any of the three places."""

    def give(
        flags: dict[str, str] | None = None, variables: dict[str, str] | None = None, toml: str | None = None
    ) -> LoadedSettings:
        environment = dict(variables or {})
        if toml is not None:
            file = tmp_path / "holdfast.toml"
            file.write_text(toml, encoding="utf-8")
            environment["HOLDFAST_CONFIG"] = str(file)
        return load_settings(flags or {}, environment)

    return give


def toml_line(name: str, written: str) -> str:
    escaped = written.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name} = "{escaped}"\n'


def place(tmp_path: Path, written: str) -> str:
    """A text that stands for a file becomes that file's name."""
    if not written.startswith("<"):
        return written
    file = tmp_path / written[1:-1].replace(" ", "-")
    file.write_text(written * 8, encoding="utf-8")
    return str(file)


def test_every_setting_is_in_the_matrix() -> None:
    assert list(WRITTEN) == list(SETTINGS) == list(WRONG)


@pytest.mark.spec("10.6")
def test_every_setting_of_the_public_surface_is_there() -> None:
    named = """data store redis_url wal_dir on_redis_down flusher flush_interval flush_batch prefetch_batch shard_map
        pg_pool pg_lock_timeout pg_statement_timeout
        host port capnp_port framed_port processes stores durability shards checkpoint_bytes jwt_secret jwt_keys
        jwt_issuer jwt_audience
        tls_cert tls_key tls_client_ca mtls_tenants auto_create queue_max_consumers queue_poll_interval
        queue_poll_jitter queue_resilient_poll_interval disk_queue_watch disable_mem_queue_watch max_payload
        journal_retention reopen_after shutdown_grace log_format metrics_max_labels metrics_names allowed_hosts
        metrics_token metrics_public"""

    assert set(named.split()) == set(SETTINGS) - {
        *("jwt_secret_file", "metrics_token_file", "clock_skew", "legacy_read_only")
    }


@pytest.mark.spec("10.6")
@pytest.mark.parametrize("places", list(itertools.product([True, False], repeat=3)))
@each_setting
def test_a_flag_goes_before_a_variable_and_a_variable_before_the_file(
    setting: Setting, places: tuple[bool, bool, bool], give: Give, tmp_path: Path
) -> None:
    in_flag, in_variable, in_file = places
    flag, variable, file = (place(tmp_path, written) for written in WRITTEN[setting.name])

    loaded = give(
        {setting.name: flag} if in_flag else {},
        {setting.variable: variable} if in_variable else {},
        toml_line(setting.name, file) if in_file else "",
    )

    chosen = flag if in_flag else variable if in_variable else file if in_file else None
    value = getattr(loaded.settings, setting.field)
    if chosen is None:
        assert value == getattr(Settings(), setting.field)
        assert loaded.origin(setting.name) == "default"
    else:
        assert value == setting.parse(chosen)
        named = setting.flag if in_flag else setting.variable if in_variable else f"key {setting.name} in"
        assert named in loaded.origin(setting.name)


@pytest.mark.spec("10.6")
@pytest.mark.parametrize(
    ("setting", "wrong"), [(SETTINGS[name], wrong) for name, every in WRONG.items() for wrong in every]
)
def test_a_wrong_value_is_refused_with_its_name_and_where_it_stood(setting: Setting, wrong: str, give: Give) -> None:
    for arguments, origin in (
        (({setting.name: wrong},), f"flag {setting.flag}"),
        (({}, {setting.variable: wrong}), f"variable {setting.variable}"),
        (({}, {}, toml_line(setting.name, wrong)), f"key {setting.name} in "),
    ):
        with pytest.raises(InvalidArgument) as refused:
            give(*arguments)

        assert refused.value.message.startswith(f"{setting.name} ")
        assert origin in refused.value.message
        assert setting.kind.accepts in refused.value.message


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("port = 80", "port", 80),
        ("auto_create = false", "auto_create", False),
        ("max_payload = 2048", "max_payload", 2_048),
        ("shutdown_grace = 2.5", "shutdown_grace_ms", 2_500),
        ("queue_poll_jitter = 0", "queue_poll_jitter_ms", 0),
        (
            '[mtls_tenants]\n"spiffe://a" = "acme"\nb = "*:admin"',
            "mtls_tenants",
            {"spiffe://a": "acme", "b": "*:admin"},
        ),
    ],
)
def test_toml_has_types_of_its_own(line: str, field: str, value: object, give: Give) -> None:
    assert getattr(give(toml=line).settings, field) == value


@pytest.mark.parametrize("line", ["port = true", "auto_create = 1", "host = 7", "data = []", "port = {a = 1}"])
def test_a_toml_value_of_another_type_is_refused(line: str, give: Give) -> None:
    with pytest.raises(InvalidArgument, match="is not accepted"):
        give(toml=line)


def test_durations_and_sizes_are_read_as_they_are_written(give: Give) -> None:
    settings = give(
        {"shutdown_grace": "5m", "queue_poll_jitter": "500ms", "queue_poll_interval": "3s", "max_payload": "512KiB"}
    ).settings

    assert settings.shutdown_grace_ms == 300_000
    assert settings.queue_poll_jitter_ms == 500
    assert settings.queue_poll_interval_ms == 3_000
    assert settings.max_payload == 524_288


@pytest.mark.spec("10.6")
@pytest.mark.parametrize(
    ("key", "meant"), [("prot", "port"), ("max-payload", "max_payload"), ("jwt_secrets", "jwt_secret")]
)
def test_an_unknown_key_is_refused_with_the_one_that_was_meant(key: str, meant: str, give: Give) -> None:
    with pytest.raises(InvalidArgument, match=f"'{key}' in .* is not a setting: did you mean {meant}[?]"):
        give(toml=f"{key} = 1")


def test_a_key_that_is_like_no_other_is_refused_with_all_there_are(give: Give) -> None:
    with pytest.raises(InvalidArgument, match=r"'zzz' in .*: the settings are data, store"):
        give(toml="[zzz]\nport = 1")


@pytest.mark.parametrize(
    "variable", ["HOLDFAST_JWT_SECRT", "HOLDFAST_JWT_KEY", "HOLDFAST_TLS_CLIENT_CAS", "HOLDFAST_HOSTS"]
)
def test_a_variable_that_is_a_slip_of_the_pen_is_refused(variable: str, give: Give) -> None:
    with pytest.raises(InvalidArgument, match=f"{variable} is not a setting: did you mean HOLDFAST_"):
        give({}, {variable: "x"})


def test_other_variables_are_warned_of_and_those_of_other_programs_are_not(give: Give) -> None:
    others = ["URL", "SEED", "PROOF_SCALE", "QUEUE_NAME", "QUEUE_RECEIPT", "QUEUE_LEASE_EXPIRES_AT"]
    kubernetes = ["SERVICE_HOST", "SERVICE_PORT", "PORT_7077_TCP", "PORT_7077_TCP_ADDR"]

    loaded = give({}, {f"HOLDFAST_{name}": "x" for name in [*others, *kubernetes, "FAVOURITE_COLOUR"]})

    assert loaded.warnings == ["the variable HOLDFAST_FAVOURITE_COLOUR is not a setting and is ignored"]
    assert loaded.settings == Settings()


def test_what_kubernetes_puts_into_the_port_is_explained(give: Give) -> None:
    with pytest.raises(InvalidArgument, match="enableServiceLinks"):
        give({}, {"HOLDFAST_PORT": "tcp://10.0.0.1:7077"})


def test_a_file_that_cannot_be_read_or_is_no_toml_is_refused_by_its_name(give: Give, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"missing.toml cannot be read: No such file"):
        load_settings({}, {}, config=str(tmp_path / "missing.toml"))
    with pytest.raises(InvalidArgument, match=r"holdfast.toml is not TOML: .*line 2"):
        give(toml="port = 1\nport 2")


def test_the_flag_names_the_file_before_the_variable_does(give: Give, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("port = 1")
    (tmp_path / "b.toml").write_text("port = 2")

    loaded = load_settings({}, {"HOLDFAST_CONFIG": str(tmp_path / "b.toml")}, config=str(tmp_path / "a.toml"))

    assert loaded.settings.port == 1


def test_the_store_is_a_directory_beside_the_program_by_default(give: Give) -> None:
    assert give().settings.store_url == "./holdfast-data"
    assert give({"data": "x"}).settings.store_url == "x"
    assert give({"store": "memory://"}).settings.store_url == "memory://"


def test_of_data_and_store_the_stronger_place_decides_and_one_place_cannot_say_both(give: Give) -> None:
    assert give({"data": "x"}, {"HOLDFAST_STORE": "memory://"}).settings.store_url == "x"
    assert give({"store": "memory://"}, {}, 'data = "x"').settings.store_url == "memory://"
    with pytest.raises(InvalidArgument, match=r"data .* and store .* are both given"):
        give({"data": "x", "store": "memory://"})


def test_a_secret_may_lie_in_a_file(give: Give, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hush\n")

    assert give({"jwt_secret_file": str(file)}).settings.jwt_secret == Secret("hush")
    file.write_text("\n")
    with pytest.raises(InvalidArgument, match=r"jwt_secret_file .* is empty"):
        give({"jwt_secret_file": str(file)})
    with pytest.raises(InvalidArgument, match=r"jwt_secret_file .*: No such file"):
        give({"jwt_secret_file": str(tmp_path / "missing")})

    file.write_text("a token for scrapes\n")
    with pytest.raises(InvalidArgument, match=r"metrics_token .* is not accepted: give at least 16") as refused:
        give({"metrics_token_file": str(file)})
    assert "a token" not in str(refused.value)
    file.write_text("a-token-for-scrapes\n")
    assert give({"metrics_token_file": str(file)}).settings.metrics_token == Secret("a-token-for-scrapes")


def test_secrets_show_themselves_nowhere(give: Give, tmp_path: Path) -> None:
    secret = "canary-" * 8
    loaded = give(
        {
            "jwt_secret": secret,
            "metrics_token": secret,
            "redis_url": f"redis://user:{secret}@host",
            "store": f"s3://u:{secret}@b",
        }
    )

    for shown in (
        repr(loaded.settings),
        str(loaded.settings),
        repr(loaded),
        as_toml(loaded),
        loaded.settings.shown_store,
    ):
        assert "canary" not in shown
    assert MASKED in as_toml(loaded)
    assert loaded.settings.jwt_secret is not None
    assert loaded.settings.jwt_secret.reveal() == secret
    for name, wrong in (("store", f"ftp://u:{secret}@x"), ("redis_url", f"http://u:{secret}@x")):
        with pytest.raises(InvalidArgument) as refused:
            give({name: wrong})
        assert "canary" not in str(refused.value) + repr(refused.value.facts)


def test_the_settings_in_force_can_be_given_again_as_a_file(give: Give) -> None:
    loaded = give({"port": "81", "max_payload": "3MiB", "auto_create": "false", "shutdown_grace": "0"})

    assert give(toml=as_toml(loaded)).settings == loaded.settings


def test_the_page_of_settings_says_what_the_declarations_say() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")

    told = {
        row[0]: row[1:]
        for line in page.splitlines()
        if line.startswith("| `")
        for row in [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]]
    }

    assert told == {f"`{setting.name}`": page_row(setting) for setting in SETTINGS.values()}


def page_row(setting: Setting) -> list[str]:
    written = setting.kind.metavar.replace("|", "\\|")
    return [written, setting.default_text, setting.spec.help, "yes" if setting.spec.is_embedded else ""]


# --- Embedded use ----------------------------------------------------------------------------------------------------


def test_open_takes_the_settings_of_an_embedded_core_and_no_others() -> None:
    assert parse_settings({name: WRITTEN[name][0] for name in EMBEDDED}) is not None
    for name in set(SETTINGS) - set(EMBEDDED):
        with pytest.raises(InvalidArgument, match=f"'{name}' is not a setting of `open`; the settings are auto_create"):
            parse_settings({name: WRITTEN[name][0]})


def test_open_takes_numbers_and_refuses_wrong_ones_by_name() -> None:
    given = {"max_payload": 10, "journal_retention": 3.5, "auto_create": True, "queue_max_consumers": 5}
    with holdfast.open("memory://", **given) as hf, pytest.raises(holdfast.PayloadTooLarge):
        hf.queue("q").enqueue(b"x" * 11)
    for wrong in ({"max_payload": 0}, {"durability": "none"}, {"auto_create": "perhaps"}, {"max_waiters": 5}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            holdfast.open("memory://", **wrong)


def test_open_does_not_look_at_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MAX_PAYLOAD", "1")

    with holdfast.open("memory://") as hf:
        hf.queue("q").enqueue(b"more than one")


def test_consumers_are_limited_by_the_processors_within_bounds() -> None:
    assert 128 <= Settings().queue_max_consumers <= 4_096


@pytest.mark.parametrize(
    ("name", "given", "word"),
    [
        ("data", "localhost:7077", "write http://localhost:7077, or ./localhost:7077 for a directory"),
        ("data", "http:/host", "write http://host"),
        ("data", "memory://", "give a path of a directory"),
        ("data", "s3://bucket", "give a path of a directory"),
        ("store", "localhost:7077", "write http://localhost:7077, or ./localhost:7077 for a directory"),
        ("store", "memory:", "write memory://"),
        ("store", "s3:/bucket", "write s3://bucket"),
        ("wal_dir", "redis:6379", "or ./redis:6379 for a directory"),
    ],
)
def test_a_directory_that_looks_like_a_host_or_a_url_is_refused_with_the_right_spelling(
    name: str, given: str, word: str
) -> None:
    with pytest.raises(InvalidArgument, match="is not accepted") as refused:
        SETTINGS[name].parse(given)
    assert word in refused.value.message
    assert SETTINGS[name].parse("./name:1") == "./name:1"
