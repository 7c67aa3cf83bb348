"""The benchmark of OpenEnv's wire plays the same on both servers, and measures what the server has used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import uvloop

from benchmarks.openenv import STEPS, Player, contenders, rows
from benchmarks.servers import running
from benchmarks.sockets import SocketLoad, cpu_of, data_of
from tests.peers import venvs

pytestmark = pytest.mark.thorough


@pytest.mark.timeout(venvs._PIP_SECONDS)
@pytest.mark.parametrize("name", ["ours", "lean", "fastmcp"])
def test_each_server_plays_what_is_measured(name):
    with running(contenders()[name]) as server:
        player = Player(name, server)
        uvloop.run(player.check())
        assert uvloop.run(player.steps(4, 0.2)).steps > 4
        episodes = uvloop.run(player.episodes(4, 0.2))
        assert episodes.steps % STEPS == 0 < episodes.steps
        assert uvloop.run(player.memory_per_socket(50)) > 1000


def test_an_answer_that_is_wrong_ends_the_benchmark():
    with pytest.raises(SystemExit, match="INVALID_JSON"):
        data_of(b'{"type": "error", "data": {"code": "INVALID_JSON"}}')


def test_cpu_is_that_of_the_process_and_not_that_of_time():
    busy = subprocess.Popen(
        [sys.executable, "-c", "print(sum(range(30_000_000)), flush=True); input()"], stdin=-1, stdout=-1
    )
    with busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        used = cpu_of(busy.pid)
        assert used > 0.1
        busy.kill()


def test_a_row_is_the_reference_over_ours():
    done = {
        "ours": SocketLoad(100, 1, 0.01, 0),
        "lean": SocketLoad(100, 1, 0.02, 0),
        "fastmcp": SocketLoad(100, 1, 0.1, 0),
    }
    made = rows([done], [done], [done])
    assert [row.ratio for row in made[:2]] == ["2.0x less", "10.0x less"]
    assert (made[1].reference, made[1].ours) == ("1,000 µs", "100 µs")
    assert (made[5].reference, made[5].ours) == ("8,000 µs", "800 µs")
