"""The store over TLS: whom it trusts, by what it is known, and the words where that fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from routemaster.errors import StoreAway, StoreError, StoreUnfit
from routemaster.settings import load
from routemaster.store.check import check, wait_for
from routemaster.store.link import Link
from routemaster.store.primary import connect
from tests.failover import running_server
from tests.store.secure import Certificates, secure_sentinel, secure_store

Secure = tuple[Certificates, int]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with secure_store(tmp_path_factory.mktemp("tls")) as secure:
        yield secure


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """One that wants a certificate of its clients."""
    with secure_store(tmp_path_factory.mktemp("strict"), asks_clients=True) as secure:
        yield secure


async def test_a_private_authority_is_named_in_the_url(secure: Secure):
    certificates, port = secure
    link = Link(f"rediss://127.0.0.1:{port}/1?ca={certificates.ca}")
    link.open()
    await check(link, "ns:")
    assert await link.call("GET", "ns:layout") is not None
    await link.close()


async def test_or_in_a_setting(secure: Secure):
    certificates, port = secure
    env = {"ROUTEMASTER_REDIS_URL": f"rediss://127.0.0.1:{port}", "ROUTEMASTER_REDIS_CA": certificates.ca}
    connection = await connect(load(env).redis_url)
    assert await connection.send("PING") == b"PONG"
    connection.abort()


async def test_a_certificate_that_nobody_vouches_for_is_told_at_the_start(secure: Secure):
    link = Link(f"rediss://127.0.0.1:{secure[1]}", patience_s=0.3)
    link.open()
    with pytest.raises(StoreUnfit, match=r"not trusted.*ROUTEMASTER_REDIS_CA"):
        await wait_for(link, "ns:")
    await link.close()


async def test_a_certificate_for_another_address_is_no_good(tmp_path: Path):
    with (
        secure_store(tmp_path, name="store.example.com") as (certificates, port),
        pytest.raises(StoreUnfit, match=r"127\.0\.0\.1:\d+ is not trusted"),
    ):
        await connect(f"rediss://127.0.0.1:{port}?ca={certificates.ca}")


async def test_a_clients_certificate_is_shown(strict: Secure):
    certificates, port = strict
    env = {
        "ROUTEMASTER_REDIS_URL": f"rediss://127.0.0.1:{port}",
        "ROUTEMASTER_REDIS_CA": certificates.ca,
        "ROUTEMASTER_REDIS_TLS_CERT": certificates.cert,
        "ROUTEMASTER_REDIS_TLS_KEY": certificates.key,
    }
    connection = await connect(load(env).redis_url)
    assert await connection.send("PING") == b"PONG"
    connection.abort()


async def test_without_one_it_says_what_is_wanted(strict: Secure):
    certificates, port = strict
    with pytest.raises(StoreError, match=r"(?i)certificate|broke|reset"):
        await connect(f"rediss://127.0.0.1:{port}?ca={certificates.ca}")


async def test_sentinels_are_spoken_to_over_tls_too(secure: Secure):
    certificates, port = secure
    with secure_sentinel(certificates, port) as sentinel:
        url = f"rediss+sentinel://127.0.0.1:{sentinel}/rm"
        connection = await connect(f"{url}?ca={certificates.ca}")
        assert await connection.send("PING") == b"PONG"
        connection.abort()
        with pytest.raises(StoreAway, match=rf"127\.0\.0\.1:{sentinel} .*CERTIFICATE_VERIFY_FAILED"):
            await connect(url)


async def test_a_file_that_is_no_certificate_is_named(secure: Secure, tmp_path: Path):
    certificates, port = secure
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("not a certificate")
    url = f"rediss://127.0.0.1:{port}"
    with pytest.raises(StoreUnfit, match=r"wrong\.pem.*authorities"):
        await connect(f"{url}?ca={wrong}")
    env = {
        "ROUTEMASTER_REDIS_URL": url,
        "ROUTEMASTER_REDIS_CA": certificates.ca,
        "ROUTEMASTER_REDIS_TLS_CERT": str(wrong),
        "ROUTEMASTER_REDIS_TLS_KEY": certificates.key,
    }
    with pytest.raises(StoreUnfit, match=r"wrong\.pem.*PEM certificate"):
        await connect(load(env).redis_url)


async def test_tls_to_a_store_without_is_no_connection(secure: Secure):
    with running_server("plain", save='""') as plain:
        plain.until_answers(plain.client())
        with pytest.raises(StoreAway, match="cannot be reached"):
            await connect(f"rediss://127.0.0.1:{plain.port}?ca={secure[0].ca}")
    with pytest.raises(StoreAway):
        await connect(f"redis://127.0.0.1:{secure[1]}")
