from pathlib import Path

import pytest

from routemaster.errors import SettingError
from routemaster.settings import OF_COMMANDS, Settings, load


def test_an_empty_environment_gives_the_defaults():
    assert load({}) == Settings()


def test_an_empty_variable_counts_as_unset():
    assert load({"ROUTEMASTER_PORT": ""}) == Settings()


def test_values_are_read_in_their_units():
    settings = load(
        {
            "ROUTEMASTER_PORT": "0",
            "ROUTEMASTER_REDIS_MAX_MEM": "2g",
            "ROUTEMASTER_LOG_MAX_BYTES": "512 MB",
            "ROUTEMASTER_ALLOW_PRIVATE_CALLBACKS": "127.0.0.0/8, ::1/128",
            "ROUTEMASTER_LOG_FORMAT": "TEXT",
        }
    )
    assert settings.port == 0
    assert settings.redis_max_mem == 2 * 2**30
    assert settings.log_max_bytes == 512 * 2**20
    assert [str(network) for network in settings.allow_private_callbacks] == ["127.0.0.0/8", "::1/128"]
    assert settings.log_format == "text"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "65536"),
        ("PORT", "-1"),
        ("WORKER_THREADS", "0"),
        ("REDIS_URL", "http://store"),
        ("REDIS_PREFIX", "with space"),
        ("REDIS_MAX_MEM", "2 apples"),
        ("REDIS_MAX_MEM", "1"),  # more than a store needs for itself, or everything would be dropped
        ("HOST", "a b"),
        ("LOG_LEVEL", "loud"),
        ("ALLOW_PRIVATE_CALLBACKS", "10.0.0.1/8"),
        ("MIN_BACKOFF_MS", "0"),
        ("SCALING_THRESHOLD", "many"),
        ("SCALING_DEADLINE", "-1"),
        ("MONITOR_INTERVAL_MS", "999"),
        ("METRIC_ADAPTERS", "prometheus"),
        ("METRIC_ADAPTERS", "print,statsd"),
        ("METRIC_ADAPTERS", "statsd://host"),
        ("METRIC_ADAPTERS", "statsd://host:0"),
        ("METRIC_ADAPTERS", "statsd://host:65536"),
        ("METRIC_ADAPTERS", "statsd://host:8125/path"),
        ("METRIC_ADAPTERS", "datadog://:8125"),
        ("METRIC_ADAPTERS", "http://host:8125"),
    ],
)
def test_an_unusable_value_is_named_with_what_was_expected(name: str, value: str):
    with pytest.raises(SettingError) as caught:
        load({f"ROUTEMASTER_{name}": value})
    assert caught.value.name == f"ROUTEMASTER_{name}"
    assert "expected" in str(caught.value)


def test_sizes_are_told_in_the_units_that_they_are_written_in():
    with pytest.raises(SettingError, match="from 16m to 1048576g, such as 512m or 2g; or 0 for the default"):
        load({"ROUTEMASTER_REDIS_MAX_MEM": "15m"})
    with pytest.raises(SettingError, match="from 1k to 1m"):
        load({"ROUTEMASTER_MAX_HEADER_BYTES": "2m"})
    assert load({"ROUTEMASTER_REDIS_MAX_MEM": "0"}).redis_max_mem == 0


def test_metric_adapters_are_a_list():
    adapters = " print, statsd://metrics.example:8125 ,datadog://[::1]:8125,"
    assert load({"ROUTEMASTER_METRIC_ADAPTERS": adapters}).metric_adapters == (
        "print",
        "statsd://metrics.example:8125",
        "datadog://[::1]:8125",
    )


def test_a_lease_must_cover_the_longest_send():
    with pytest.raises(SettingError, match="ROUTEMASTER_LEASE_MS"):
        load({"ROUTEMASTER_DELIVERY_TIMEOUT_MS": "20000", "ROUTEMASTER_LEASE_MS": "20000"})


def test_backoff_bounds_must_be_in_order():
    with pytest.raises(SettingError, match="ROUTEMASTER_MIN_BACKOFF_MS"):
        load({"ROUTEMASTER_MIN_BACKOFF_MS": "2000", "ROUTEMASTER_MAX_BACKOFF_MS": "1000"})


def test_secrets_are_not_shown_in_errors():
    for name, value in (
        ("ROOT_KEY", "hunter2 hunter2"),
        ("REDIS_URL", "http://user:hunter2@store"),
        ("METRIC_ADAPTERS", "statsd://user:hunter2@host:8125"),
        ("METRIC_ADAPTERS", "hunter2@host"),
    ):
        with pytest.raises(SettingError) as caught:
            load({f"ROUTEMASTER_{name}": value})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "database"),
    [
        ("redis://store", 0),
        ("redis://store/", 0),
        ("redis://store:6379/15", 15),
        ("rediss://user:pass@store/2", 2),
        ("redis://[::1]:6379/0", 0),
        ("unix:///run/store.sock", 0),
        ("unix:///run/store.sock?db=3", 3),
        ("unix://:pass@/run/store.sock", 0),
    ],
)
def test_a_store_may_be_named_in_these_ways(url: str, database: int):
    read = load({"ROUTEMASTER_REDIS_URL": url}).redis_url
    assert read.database == database
    assert "pass" not in f"{read} {read!r}"


@pytest.mark.parametrize(
    "url",
    [
        "redis://store/abc",
        "redis://store/-1",
        "redis://store/1/2",
        "redis://store/²",
        "redis://store?db=3",
        "rediss://store/0?ssl_cert_reqs=none",
        "unix:///run/store.sock?db=abc",
        "unix:///run/store.sock?db=",
        "unix:///run/store.sock?database=3",
    ],
)
def test_a_database_that_is_no_number_is_refused(url: str):
    with pytest.raises(SettingError, match=r"ROUTEMASTER_REDIS_URL.*(database|option|number)"):
        load({"ROUTEMASTER_REDIS_URL": url})


def test_the_root_key_may_come_from_a_file(tmp_path: Path):
    key = tmp_path / "root.key"
    key.write_text("root--0123456789\n")
    assert load({"ROUTEMASTER_ROOT_KEY_FILE": str(key)}).root_key == "root--0123456789"
    with pytest.raises(SettingError, match=r"ROUTEMASTER_ROOT_KEY_FILE.*\(No such file or directory\)$"):
        load({"ROUTEMASTER_ROOT_KEY_FILE": str(tmp_path / "missing")})
    key.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"ROUTEMASTER_ROOT_KEY_FILE.*a text file"):
        load({"ROUTEMASTER_ROOT_KEY_FILE": str(key)})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("PROT", "PORT"),
        ("LOGLEVEL", "LOG_LEVEL"),
        ("LEASE", "LEASE_MS"),
        ("REDIS_MAXMEMORY", "REDIS_MAX_MEM"),
        ("ALLOW_PRIVATE_CALLBACK", "ALLOW_PRIVATE_CALLBACKS"),
        ("ROOT_KEYFILE", "ROOT_KEY_FILE"),
        ("ROOTKEY", "ROOT_KEY"),
        ("Root_Key", "ROOT_KEY"),
    ],
)
def test_a_misspelt_variable_stops_the_start_and_is_told_the_right_name(written: str, meant: str):
    with pytest.raises(SettingError) as caught:
        load({f"ROUTEMASTER_{written}": "hunter2--hunter2"})
    assert caught.value.name == f"ROUTEMASTER_{written}"
    assert f"is ROUTEMASTER_{meant} meant?" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_what_commands_read_is_no_misspelling(name: str):
    load({f"ROUTEMASTER_{name}": "anything"})


def test_what_others_put_into_the_environment_is_left_alone():
    """Kubernetes does so for services that are called routemaster, routemaster-web and routemaster-redis."""
    injected = {
        f"ROUTEMASTER_{service}{name}": value
        for service in ("", "WEB_", "REDIS_", "POST_")
        for name, value in {
            "SERVICE_HOST": "10.0.0.1",
            "SERVICE_PORT": "7080",
            "SERVICE_PORT_HTTP": "7080",
            "PORT": "tcp://10.0.0.1:7080",
            "PORT_7080_TCP": "tcp://10.0.0.1:7080",
            "PORT_7080_TCP_PROTO": "tcp",
            "PORT_7080_TCP_PORT": "7080",
            "PORT_7080_TCP_ADDR": "10.0.0.1",
        }.items()
    }
    del injected["ROUTEMASTER_PORT"]
    others = {"ROUTEMASTER_URL": "http://bus", "ROUTEMASTER_TOKEN": "x", "ROUTEMASTER_PROT": "", "PORTS": "1"}
    assert load({**injected, **others}) == Settings()


def test_a_port_that_kubernetes_set_says_what_to_do():
    with pytest.raises(SettingError, match=r"ROUTEMASTER_PORT.*Kubernetes.*enableServiceLinks: false"):
        load({"ROUTEMASTER_PORT": "tcp://10.0.0.1:7080"})


def test_the_stores_url_has_all_that_other_settings_say_of_it(tmp_path: Path):
    for name in ("ca", "cert", "key", "password"):
        (tmp_path / name).write_text(f"{name}\n")
    env = {
        "ROUTEMASTER_REDIS_URL": "rediss+sentinel://bus@s1,s2/rm",
        "ROUTEMASTER_REDIS_CA": str(tmp_path / "ca"),
        "ROUTEMASTER_REDIS_TLS_CERT": str(tmp_path / "cert"),
        "ROUTEMASTER_REDIS_TLS_KEY": str(tmp_path / "key"),
        "ROUTEMASTER_REDIS_PASSWORD_FILE": str(tmp_path / "password"),
        "ROUTEMASTER_REDIS_SENTINEL_USER": "watcher",
        "ROUTEMASTER_REDIS_SENTINEL_PASSWORD": "hunter2",
    }
    url = load(env).redis_url
    assert (url.user, url.password, url.sentinel_user, url.sentinel_password) == (
        "bus",
        "password",
        "watcher",
        "hunter2",
    )
    assert (url.ca, url.cert, url.key) == tuple(str(tmp_path / name) for name in ("ca", "cert", "key"))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"REDIS_TLS_CERT": __file__}, "REDIS_TLS_KEY"),
        ({"REDIS_TLS_KEY": __file__}, "REDIS_TLS_CERT"),
        ({"REDIS_URL": "redis://store", "REDIS_CA": __file__}, "REDIS_CA"),
        ({"REDIS_CA": "/nowhere/ca.pem"}, "REDIS_CA"),
        ({"REDIS_URL": "rediss://store?ca=/nowhere/ca.pem"}, "REDIS_URL"),
        ({"REDIS_SENTINEL_PASSWORD": "hunter2"}, "REDIS_SENTINEL_PASSWORD"),
        ({"REDIS_URL": "rediss://:a@store", "REDIS_PASSWORD": "hunter2"}, "REDIS_PASSWORD"),
        ({"REDIS_PASSWORD_FILE": "/nowhere"}, "REDIS_PASSWORD_FILE"),
        ({"REDIS_REPLICAS": "-1"}, "REDIS_REPLICAS"),
        ({"REDIS_REPLICAS_TIMEOUT_MS": "501"}, "REDIS_REPLICAS_TIMEOUT_MS"),
    ],
)
def test_settings_of_the_store_that_do_not_fit_together_are_named(settings: dict[str, str], name: str):
    settings = {"REDIS_URL": "rediss://store", **settings}
    with pytest.raises(SettingError) as caught:
        load({f"ROUTEMASTER_{key}": value for key, value in settings.items()})
    assert caught.value.name == f"ROUTEMASTER_{name}"
    assert "hunter2" not in str(caught.value)
