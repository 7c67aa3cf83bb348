"""What the files in deploy/ claim about Toolyard is true."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from toolyard.settings import Settings, variable_of

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_file())
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()
POD = (ROOT / "deploy" / "kubernetes" / "toolyard.yaml").read_text()
NGINX = (ROOT / "deploy" / "nginx.conf").read_text()


def test_every_variable_that_is_set_is_a_setting():
    known = {variable_of(knob.name) for knob in dataclasses.fields(Settings)}
    named = {name for path in FILES for name in re.findall(r"TOOLYARD_[A-Z_]+", path.read_text())}
    assert "TOOLYARD_GATEWAYS" in named
    assert named <= known


def test_everything_that_the_image_is_made_of_is_there():
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    assert sources
    for source in " ".join(sources).split():
        assert (ROOT / source).exists(), source


def test_the_balancer_knows_as_many_pods_as_there_are():
    replicas = re.search(r"replicas: (\d+)", POD)
    machines = (ROOT / "deploy" / "kubernetes" / "machines.conf").read_text()
    named = re.findall(r"^server toolyard-(\d+)\.toolyard\.toolyard\.svc\.cluster\.local:8080", machines, re.MULTILINE)
    assert list(map(int, named)) == list(range(int(replicas[1])))


def test_a_pod_has_more_time_to_stop_than_it_needs():
    grace = int(re.search(r"terminationGracePeriodSeconds: (\d+)", POD)[1])
    needed = [int(value) for value in re.findall(r"(?:DRAIN|TEARDOWN)_SECONDS\n\s+value: \"(\d+)\"", POD)]
    assert len(needed) == 2
    assert grace > sum(needed) + 10


@pytest.mark.parametrize(
    ("path", "by"),
    [
        ("/yard/call", "by_session"),
        ("/create", "by_session"),
        ("/execute_tool", "by_session"),
        ("/get_cookie", "by_session"),
        ("/toolserver/get_cookies", "by_session"),
        ("/get_observation", "by_client"),
        ("/verl/get_observation", "by_client"),
    ],
)
def test_the_balancer_chooses_the_machine_by_what_names_the_session(path, by):
    places = re.findall(r"location (?:~ )?(\S+) \{(.*?)\n        \}", NGINX, re.DOTALL)
    found = [body for pattern, body in places if pattern != "/" and re.search(pattern, path)] or [places[0][1]]
    assert f"proxy_pass http://{by};" in found[0]
    assert ("Set-Cookie" in found[0]) == ("get_cookie" in path)


@pytest.mark.parametrize(("sid", "family"), [("a-b", "a-b"), ("a-b.c-d", "a-b"), ("a.b.c", "a")])
def test_sessions_that_were_forked_go_where_their_parent_is(sid, family):
    pattern = re.search(r'"~(\^\(\?<family>\S+)"', NGINX)[1].replace("?<", "?P<")
    assert re.search(pattern, sid)["family"] == family
