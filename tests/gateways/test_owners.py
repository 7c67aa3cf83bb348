"""Which gateway a session belongs to, and each gateway's share."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from toolyard.protocols.metrics.merging import merged
from toolyard.runtime.owners import Owners
from toolyard.settings import Settings


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_names_that_a_gateway_makes_are_its_own_in_the_eyes_of_all(count):
    everybody = [Owners(number, count) for number in range(count)]
    for owners in everybody:
        name = owners.draw(lambda: str(uuid.uuid4()))
        assert {other.of(name) for other in everybody} == {owners.number}


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("name", ["{n}", "traj_{n}", "{n:08d}", "run/{n}/step", "\ud800{n}"])
def test_names_that_clients_number_are_spread_evenly(count, name):
    owners = Owners(0, count)
    found = Counter(owners.of(name.format(n=n)) for n in range(4000))
    assert len(found) == count
    assert min(found.values()) > 0.7 * 4000 / count


def test_what_is_of_the_whole_server_is_divided_and_what_is_of_each_session_is_not():
    whole = Settings(gateways=3, max_sessions=10, threads=9, pool_processes=4, sandboxes_ready=0, call_seconds=7)
    part = whole.part()
    assert (part.max_sessions, part.threads, part.pool_processes, part.sandboxes_ready) == (4, 3, 2, 0)
    assert (part.call_seconds, part.body_bytes, part.gateways) == (7, whole.body_bytes, 3)
    assert Settings().part() == Settings()


def test_what_gateways_tell_is_one_text_in_which_families_stay_together():
    one = (
        '# HELP a About a.\n# TYPE a gauge\na 1\na{x="y z"} 2\n# HELP b About b.\n# TYPE b histogram\nb_sum{l="1"} 3\n'
    )
    assert merged({0: one, 2: one.replace(" 1\n", " 7\n")}) == (
        "# HELP a About a.\n# TYPE a gauge\n"
        'a{gateway="0"} 1\na{gateway="0",x="y z"} 2\na{gateway="2"} 7\na{gateway="2",x="y z"} 2\n'
        "# HELP b About b.\n# TYPE b histogram\n"
        'b_sum{gateway="0",l="1"} 3\nb_sum{gateway="2",l="1"} 3\n'
    )
