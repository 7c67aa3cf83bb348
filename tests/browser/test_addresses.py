"""Where a browser may go, whatever sends it there."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import anyio
import pytest

from tests.browser.site import Site
from toolyard.browser.actions import Click, Goto, Look
from toolyard.browser.addresses import Addresses, AddressRefused, is_public
from toolyard.browser.gate import AddressGate
from toolyard.browser.shared import Visit
from toolyard.core.errors import ToolError

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "address",
    [
        *("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"),
        *("168.63.129.15", "169.253.255.255", "172.32.0.1", "192.0.1.1", "198.20.0.1", "223.255.255.255", "2a00::1"),
    ],
)
def test_addresses_on_the_internet_are_public(address: str):
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:5ef5:79fd:0:0:80ff:fffe"),
    ],
)
def test_addresses_of_machines_and_local_networks_are_not(address: str):
    assert not is_public(ipaddress.ip_address(address))


FORMS = ["{}", "::ffff:{}", "64:ff9b::{}", "::{}", "::ffff:0:{}", "2002:{:x}:{:x}::1"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "address",
    [
        *("192.0.0.192", "168.63.129.16", "169.254.169.254", "169.254.170.2", "100.100.100.200"),  # metadata services
        *("192.0.0.9", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "127.1.2.3"),
    ],
)
def test_an_address_that_is_not_public_is_so_in_every_form(address: str, form: str):
    number = int(ipaddress.IPv4Address(address))
    halves = (number >> 16, number & 0xFFFF)
    assert not is_public(ipaddress.ip_address(form.format(*halves) if "x" in form else form.format(address)))


@pytest.mark.parametrize(
    "address",
    [
        *("fd00:ec2::254", "fd20:ce::254", "64:ff9b:1::808:808", "2001:db8::1", "3fff::1", "5f00::1", "100::1"),
        *("2001:2::1", "2001:10::1", "2001:20::1", "2001::1", "4000::1", "::808:808", "::ffff:0:808:808"),
    ],
)
def test_special_addresses_of_ipv6_are_not_public(address: str):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:1/", "http://localhost/", "http://LOCALHOST./", "http://[::1]:8080/", "http://2130706433/"),
        *("http://127.1/", "http://0x7f000001/", "http://[::ffff:127.0.0.1]/", "https://169.254.169.254/latest"),
        *("file:///etc/passwd", "chrome://version", "javascript:alert(1)", "data:text/html,x", "about:config"),
        *("ftp://8.8.8.8/", "http://", "http://8.8.8.8:x/", "view-source:http://8.8.8.8/"),
    ],
)
async def test_by_default_only_public_web_addresses_can_be_asked_for(url: str):
    with pytest.raises(AddressRefused):
        await Addresses().check(url)


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1234/"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/"),
        ("localhost", "http://localhost:99/"),
        ("10.0.0.0/8, 127.0.0.0/8", "http://127.0.0.1/"),
        ("[::1]:80", "http://[::1]/"),
        ("::1", "http://[::1]/"),
        ("local*", "https://localhost/"),
        ("*", "http://127.0.0.1/"),
    ],
)
async def test_operators_allow_more_by_host_address_network_or_port(allowed: str, url: str):
    await Addresses.parse(allowed).check(url)


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8001/"),
        ("10.0.0.0/8", "http://127.0.0.1/"),
        ("example.org", "http://localhost/"),
        ("localhost", "http://127.0.0.1/"),
    ],
)
async def test_what_is_allowed_is_that_and_no_more(allowed: str, url: str):
    with pytest.raises(AddressRefused, match="not a public address"):
        await Addresses.parse(allowed).check(url)


class Fickle(Addresses):
    """Resolves a name once. Later look-ups, or those elsewhere, find a different address."""

    asked = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        type(self).asked += 1
        return ["127.0.0.1"] if self.asked == 1 else ["127.0.0.2"]


async def test_the_gate_connects_to_the_address_that_was_looked_at(site: Site):
    async with AddressGate(Fickle()) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
        name = b"rebinding.invalid"
        there = site.server_port.to_bytes(2, "big")
        writer.write(b"\x05\x01\x00" + b"\x05\x01\x00\x03" + bytes([len(name)]) + name + there)
        assert await reader.readexactly(2) == b"\x05\x00"
        assert (await reader.readexactly(10))[1] == 0
        writer.write(b"GET /echo?here=yes HTTP/1.0\r\n\r\n")
        assert b"here=yes" in await reader.read()
        writer.close()
    assert Fickle.asked == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_the_gate_refuses_what_is_not_allowed(private: Site, host: str):
    before = private.connections
    async with AddressGate(Addresses()) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
        there = private.server_port.to_bytes(2, "big")
        writer.write(b"\x05\x01\x00" + b"\x05\x01\x00\x03" + bytes([len(host)]) + host.encode() + there)
        assert (await reader.read())[3] == 2
        writer.close()
        assert "not a public address" in gate.problem(f"http://{host}:{private.server_port}/")
    assert private.connections == before


async def test_the_agent_is_told_why_it_cannot_go_somewhere(visit: Visit, private: Site):
    with pytest.raises(ToolError, match=f"127.0.0.1 port {private.server_port} is not a public address"):
        await visit.perform(Goto(private.url))
    with pytest.raises(ToolError, match="only http and https addresses can be opened, not 'file'"):
        await visit.perform(Goto("file:///etc/passwd"))


async def test_a_redirect_leads_no_further_than_a_link(visit: Visit, site: Site, private: Site):
    with pytest.raises(ToolError, match="not a public address"):
        await visit.perform(Goto(f"{site.url}/redirect?to={private.url}/secret"))
    assert private.connections == 0


async def test_a_link_to_a_local_file_leads_nowhere(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    assert (await visit.perform(Click(4))).text == view.text


async def test_nothing_that_a_page_does_reaches_an_address_that_is_not_allowed(visit: Visit, site: Site, private: Site):
    """Fetches, redirects, WebSockets, images, frames and WebRTC: the server there must not receive a single packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets:
        packets.bind(("127.0.0.1", private.server_port))
        packets.settimeout(0.1)
        view = await visit.perform(Goto(f"{site.url}/nosy.html?target={private.host}"))
        with anyio.fail_after(15):
            while "trying" in view.text:
                view = await visit.perform(Look())
        assert "fetch failed, redirect failed, socket failed, image failed" in view.text
        with pytest.raises(TimeoutError):
            packets.recv(1)
    assert private.connections == 0
    assert any(path.startswith("/redirect?to=") for path in site.asked)
