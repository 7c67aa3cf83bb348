"""TLS, and the proxies of the environment variables, for both clients."""

from __future__ import annotations

import pytest

from tests.client.kinds import Awaited, Plain
from tests.client.processes import in_a_process
from tests.client.ways import certified, relay

PLAY = """
    import sys
    from tests.client import kinds

    with kinds.kind_of(getattr(kinds, sys.argv[2]), sys.argv[1], patience=1) as client:
        with client.session() as call:
            print(call("noparam").text, call("noparam").text)
"""
LOOK = """
    import sys
    from tests.client import kinds

    try:
        with kinds.kind_of(getattr(kinds, sys.argv[2]), sys.argv[1], patience=0.3) as client:
            client.list()
    except Exception as error:
        print(type(error).__name__, error)
"""
NO_PROXY = dict.fromkeys(("no_proxy", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY"), "")


@pytest.fixture(params=[Plain, Awaited])
def kind(request):
    return request.param.__name__


def through(proxy, *names: str, without: str = "") -> dict[str, str]:
    url = proxy.url.replace("//", "//ann:p%40ss@")
    return {**NO_PROXY, **dict.fromkeys(names, url), "no_proxy": without}


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
def test_a_proxy_is_told_the_whole_address_and_who_asks(kind, served, name):
    with relay() as proxy:
        assert in_a_process(PLAY, served.url, kind, **through(proxy, name)) == "nothing nothing\n"
        assert proxy.heads
        assert all(f" {served.url}/".encode() in head for head in proxy.heads)


@pytest.mark.parametrize("without", ["127.0.0.1", "127.0.0.0/8", "*", "elsewhere, 127.0.0.1"])
def test_a_near_server_is_reached_without_the_proxy(kind, served, without):
    with relay() as proxy:
        variables = through(proxy, "http_proxy", without=without)
        assert in_a_process(PLAY, served.url, kind, **variables) == "nothing nothing\n"
        assert not proxy.heads


def test_a_proxy_that_refuses_us_is_named_as_the_reason(kind, served):
    with relay() as proxy:
        variables = {**NO_PROXY, "http_proxy": proxy.url}
        assert "407" in in_a_process(LOOK, served.url, kind, **variables)


def test_a_proxy_of_another_kind_is_refused_at_once(kind, served):
    variables = {**NO_PROXY, "http_proxy": "socks5://127.0.0.1:9"}
    said = in_a_process(LOOK, served.url, kind, **variables)
    assert said.startswith("ValueError clients talk to proxies over HTTP")


def test_a_server_with_tls_is_reached_straight_and_through_a_proxy(kind, served, tmp_path):
    context, trusted = certified(tmp_path)
    with relay(served.url, context) as server, relay() as proxy:
        trusting = {**NO_PROXY, "SSL_CERT_FILE": str(trusted)}
        assert in_a_process(PLAY, server.url, kind, **trusting) == "nothing nothing\n"
        variables = {**through(proxy, "https_proxy"), "SSL_CERT_FILE": str(trusted)}
        assert in_a_process(PLAY, server.url, kind, **variables) == "nothing nothing\n"
        assert proxy.heads
        assert all(head.startswith(b"CONNECT 127.0.0.1:") for head in proxy.heads)


def test_a_certificate_that_nobody_vouches_for_is_refused(kind, served, tmp_path):
    context, _ = certified(tmp_path)
    with relay(served.url, context) as server:
        said = in_a_process(LOOK, server.url, kind, **NO_PROXY)
        assert said.startswith("ConnectionLost")
        assert "certificate verify failed" in said
