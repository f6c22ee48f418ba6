"""The store's URL: what is taken, what is refused and with which words, and that no secret is shown."""

import pytest

from routemaster.errors import SettingError
from routemaster.store_url import StoreUrl, read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://store", StoreUrl(hosts=(("store", 6379),))),
        ("redis://store/", StoreUrl(hosts=(("store", 6379),))),
        ("redis://store:7000/3", StoreUrl(hosts=(("store", 7000),), database=3)),
        ("redis://[::1]:7000", StoreUrl(hosts=(("::1", 7000),))),
        ("redis://:pw@store", StoreUrl(hosts=(("store", 6379),), password="pw")),
        ("redis://bus@store", StoreUrl(hosts=(("store", 6379),), user="bus")),
        ("redis://b%40s:a%2Fb:c@store", StoreUrl(hosts=(("store", 6379),), user="b@s", password="a/b:c")),
        ("rediss://store", StoreUrl(hosts=(("store", 6379),), is_secure=True)),
        (
            "rediss://store?ca=/etc/ca.pem",
            StoreUrl(hosts=(("store", 6379),), is_secure=True, ca="/etc/ca.pem"),
        ),
        ("unix:///run/store.sock", StoreUrl(path="/run/store.sock")),
        (
            "unix://bus:pw@/run/a%20b.sock?db=2",
            StoreUrl(path="/run/a b.sock", user="bus", password="pw", database=2),
        ),
        ("redis+sentinel://s1/rm", StoreUrl(hosts=(("s1", 26379),), service="rm")),
        (
            "rediss+sentinel://bus:pw@s1:1,[::1],s3:3/rm-1/4",
            StoreUrl(
                hosts=(("s1", 1), ("::1", 26379), ("s3", 3)),
                service="rm-1",
                database=4,
                user="bus",
                password="pw",
                is_secure=True,
            ),
        ),
    ],
)
def test_every_form_is_read(text: str, expected: StoreUrl):
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("store:6379", "redis://"),
        ("http://store", "redis://"),
        ("valkey://store", "redis://"),
        ("redis://", "host:port"),
        ("redis://store/abc", "number of a database"),
        ("redis://store/1/2", "number of a database"),
        ("redis://store/-1", "number of a database"),
        ("redis://store:0", "1 to 65535"),
        ("redis://store:65536", "1 to 65535"),
        ("redis://a,b", "host:port"),
        ("redis://user:hunter2/x@store", "%2F"),
        ("redis://store?db=1", "'db'"),
        ("redis://store?ca=/x", "'ca'"),
        ("redis://store?timeout", "name=value"),
        ("redis://@store", "user:password"),
        ("redis://store/0#1", "redis://"),
        ("unix://host/run/store.sock", "unix:///path"),
        ("unix://", "unix:///path"),
        ("unix:///run/store.sock?db=x", "number of a database"),
        ("redis+sentinel://s1,s2", "service's name"),
        ("redis+sentinel://s1,s2/0/rm", "number of a database"),
        ("redis+sentinel://s1,,s2/rm", "host:port"),
        ("redis+sentinel://s1/r m", "service's name"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_was_expected(text: str, words: str):
    with pytest.raises(SettingError) as caught:
        read(text)
    assert words in caught.value.expected
    assert caught.value.name == "ROUTEMASTER_REDIS_URL"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:hunter2@host:7000/3", "redis://host:7000"),
        ("rediss://:hunter2@[::1]", "rediss://[::1]:6379"),
        ("unix://user:hunter2@/run/store.sock?db=1", "unix:///run/store.sock"),
        ("redis+sentinel://u:hunter2@a,b:1/rm/2", "redis+sentinel://a:26379,b:1/rm"),
    ],
)
def test_no_credential_is_shown(text: str, shown: str):
    url = read(text)
    assert str(url) == shown
    assert "hunter2" not in f"{url} {url!r} {[url]}"


def test_one_that_is_missing_is_named_without_a_value():
    with pytest.raises(SettingError, match=r"^--from: expected redis://"):
        read("", "--from")
