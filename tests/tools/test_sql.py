"""`sql`: results of a query appear as pandas shows them, and a database allows nothing else."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.tools.acting import Trainer
from toolyard import Environment
from toolyard.server import Server
from toolyard.settings import Settings, SettingsError
from toolyard.testing import running
from toolyard.tools import sql as tool
from toolyard.tools.table_text import table_text

pytestmark = pytest.mark.anyio

TABLES = json.loads(Path(__file__).with_name("tables.json").read_text(encoding="utf-8"))
"""Rows, and how `DataFrame(rows).to_string(index=False)` of pandas 2.2.3 shows them."""

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sql") / "town.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        CREATE TABLE people (id INTEGER, name TEXT, height REAL);
        INSERT INTO people VALUES (1, 'Ann', 1.7), (2, 'Bartholomew', NULL), (30, NULL, 1.825);
        CREATE TABLE numbers (n INTEGER);
        WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 20000)
        INSERT INTO numbers SELECT x FROM c;
        """
    )
    connection.close()
    return path


@pytest.fixture
def relative(database: Path) -> str:
    """Its folder as a relative path, as a user who starts a server here may write it."""
    return os.path.relpath(database.parent)


@pytest.fixture(scope="module")
def url(database: Path) -> Iterator[str]:
    with running([], tools="sql", data_dir=(str(database.parent),)) as served:
        yield served.url


@pytest.fixture
async def trainer(url: str) -> AsyncIterator[Trainer]:
    async with Trainer(url) as client:
        yield client


@pytest.fixture
async def stranger() -> AsyncIterator[Trainer]:
    """A trainer of a server whose operator named no directory."""
    with running([], tools="sql") as served:
        async with Trainer(served.url) as client:
            yield client


def wrapped(text: str, turns: int = 0) -> str:
    reminder = f"<reminder>You have {turns} turns left to complete the task.</reminder>"
    return f"\n\n<observation>{text}\n{reminder}</observation>\n\n"


def value(written: Any) -> Any:
    match written:
        case {"hex": str(digits)}:
            return bytes.fromhex(digits)
        case {"float": str(number)}:
            return float(number)
        case _:
            return written


@pytest.mark.parametrize("table", TABLES, ids=[table["name"] for table in TABLES])
def test_a_table_is_written_as_pandas_writes_it(table: dict[str, Any]) -> None:
    assert table_text([[value(one) for one in row] for row in table["rows"]]) == table["text"]


async def test_rows_come_back_as_a_table_and_the_trajectory_goes_on(trainer: Trainer, database: Path) -> None:
    seen = await trainer.act("Let me see. <sql>SELECT * FROM people</sql>", db_path=str(database), turns_left=4)
    table = " 0           1     2\n 1         Ann 1.700\n 2 Bartholomew   NaN\n30        None 1.825"
    assert seen.observation == {"obs": wrapped(table, 4), "parsed_sql": "SELECT * FROM people"}
    assert (seen.done, seen.valid) == (False, True)


async def test_the_last_tag_counts_and_the_last_fence_in_it(trainer: Trainer, database: Path) -> None:
    text = "<sql>SELECT 1</sql> no: <sql>```sql\nSELECT 2\n```\nor\n```sql\nSELECT 3 WHERE 2 > = 1\n```</sql>"
    seen = await trainer.act(text, db_path=str(database))
    assert seen.text == wrapped(" 0\n 3")


@pytest.mark.parametrize("piece", ["\n", "\n ", "```sql\n", "```sql\nx", "\n```x", "YEAR ", "> "])
def test_a_query_of_nothing_but_line_ends_or_fences_holds_nobody_up(piece: str) -> None:
    began = time.process_time()
    tool.extracted("```sql\n" + piece * (40_000 // len(piece)))
    assert time.process_time() - began < 1


async def test_a_tag_that_is_not_closed_is_no_query(trainer: Trainer, database: Path) -> None:
    seen = await trainer.act("<sql>SELECT 1</sql> and <sql>SELECT 2", db_path=str(database))
    assert (seen.observation, seen.done, seen.valid) == ("", False, False)


async def test_the_current_year_is_that_of_the_data_sets(trainer: Trainer, database: Path) -> None:
    seen = await trainer.act("<sql>SELECT year( CURDATE() ) - 1</sql>", db_path=str(database))
    assert seen.text == wrapped("   0\n2019")


async def test_no_rows_are_an_empty_frame(trainer: Trainer, database: Path) -> None:
    seen = await trainer.act("<sql>SELECT * FROM people WHERE id < 0</sql>", db_path=str(database))
    assert seen.text == wrapped("Empty DataFrame\nColumns: []\nIndex: []")


async def test_of_a_long_table_only_the_beginning_is_shown(trainer: Trainer, database: Path) -> None:
    seen = await trainer.act("<sql>SELECT n FROM numbers</sql>", db_path=str(database))
    first = "\n".join(f"{n:2}" for n in (0, *range(1, 51)))
    assert seen.text == wrapped(f"Truncated to 50 lines since returned response too long: {first}")


def test_rows_that_are_not_shown_still_decide_what_a_column_is(database: Path) -> None:
    """As in pandas: a missing value anywhere turns the whole column into floats."""
    query = "SELECT n FROM numbers UNION ALL SELECT NULL"
    shown = tool.observed(query, tool.Database(str(database))).splitlines()
    assert shown[:3] == ["Truncated to 50 lines since returned response too long:    0", " 1.0", " 2.0"]
    assert len(shown) == 51


def test_a_row_takes_no_more_room_than_what_is_shown_of_it(database: Path) -> None:
    wide = ", ".join(["hex(zeroblob(400000))", "zeroblob(800000)"] * 20)
    shown = tool.observed(f"SELECT {wide}", tool.Database(str(database)))
    assert tool.TEXT_MOST < len(shown) < 10 * tool.TEXT_MOST


def test_a_short_query_cannot_take_all_memory(database: Path) -> None:
    """In a separate process: SQLite's limit is the process's, and stays."""
    doubled = "".join(f", t{i}(x) AS (SELECT a.x FROM t{i - 1} a, t{i - 1} b)" for i in range(1, 40))
    query = f"WITH t0(x) AS (SELECT 1){doubled} SELECT count(*) FROM t39"
    program = (
        "import sys\nfrom toolyard.tools import sql\nsql.HEAP_BYTES = 64 * 2**20\n"
        "print(sql.observed(sys.argv[1], sql.Database(sys.argv[2])))\n"
        "print(sql.observed('SELECT count(*) FROM numbers', sql.Database(sys.argv[2])))\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"  # not the parent's memory
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, query, str(database)],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)),
    )
    *told, kilobytes = ran.stdout.split("\n")[:-1]
    assert told == ["Error executing SQL: out of memory", "    0", "20000"], ran.stderr
    assert int(kilobytes) < 500_000


async def test_an_error_is_for_the_model_to_read(trainer: Trainer, database: Path) -> None:
    seen = await trainer.act("<sql>SELECT * FROM nobody</sql>", db_path=str(database))
    assert seen.text == wrapped("Error executing SQL: no such table: nobody")
    assert (seen.done, seen.valid) == (False, True)


async def test_an_empty_query_is_said_to_be_invalid(trainer: Trainer, database: Path) -> None:
    assert (await trainer.act("<sql> </sql>", db_path=str(database))).text == wrapped(tool.EMPTY_QUERY)


@pytest.mark.thorough
@pytest.mark.alone
async def test_a_query_that_does_not_end_is_stopped_and_hinders_nobody(trainer: Trainer, database: Path) -> None:
    began = time.monotonic()

    async def endless() -> None:
        seen = await trainer.act(f"<sql>{ENDLESS}</sql>", db_path=str(database))
        assert seen.text == wrapped(f"SQL Timeout:\n{ENDLESS}")
        assert (seen.done, seen.valid) == (False, True)

    async with anyio.create_task_group() as group:
        group.start_soon(endless)
        assert (await trainer.act("<sql>SELECT 1</sql>", db_path=str(database))).text == wrapped(" 0\n 1")
        assert time.monotonic() - began < tool.SECONDS
    assert time.monotonic() - began < tool.SECONDS * 3


async def test_a_solution_ends_the_trajectory(trainer: Trainer) -> None:
    seen = await trainer.act("Done: <solution>SELECT 1</solution>")
    assert seen.observation == {"obs": "", "parsed_sql": "SELECT 1"}
    assert (seen.done, seen.valid) == (True, False)


async def test_a_query_comes_before_a_solution(trainer: Trainer, database: Path) -> None:
    seen = await trainer.act("<solution>SELECT 1</solution><sql>SELECT 2</sql>", db_path=str(database))
    assert (seen.text, seen.done) == (wrapped(" 0\n 2"), False)


async def test_without_a_database_the_action_is_not_valid(trainer: Trainer) -> None:
    seen = await trainer.act("<sql>SELECT 1</sql>")
    assert seen.text == wrapped("Execution Error:\nthe task names no database, neither as db_path nor as db_id")
    assert (seen.done, seen.valid) == (False, False)


async def test_a_name_is_looked_up_in_the_folder_of_databases(
    trainer: Trainer, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQL_CACHE_DIR", str(database.parent))
    assert (await trainer.act("<sql>SELECT 5</sql>", db_id=database.name)).text == wrapped(" 0\n 5")
    seen = await trainer.act("<sql>SELECT 5</sql>", db_id="none.sqlite")
    assert seen.text == wrapped(f"The database file {database.parent}/none.sqlite does not exist.")


async def test_a_name_leads_nowhere_else(trainer: Trainer, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = database.parent / "inner"
    inner.mkdir(exist_ok=True)
    monkeypatch.setenv("SQL_CACHE_DIR", str(inner))
    for name in (f"../{database.name}", str(database)):
        assert "does not exist" in (await trainer.act("<sql>SELECT 5</sql>", db_id=name)).text


async def test_a_root_keeps_paths_below_it(
    stranger: Trainer, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLYARD_SQL_ROOT", str(tmp_path))
    shutil.copy(database, tmp_path / "inside.sqlite")
    (tmp_path / "linked.sqlite").symlink_to(database)
    for path in (database, f"{tmp_path}/../{database.parent.name}/{database.name}", tmp_path / "linked.sqlite"):
        assert "does not exist" in (await stranger.act("<sql>SELECT 5</sql>", db_path=str(path))).text
    seen = await stranger.act("<sql>SELECT 5</sql>", db_path=str(tmp_path / "inside.sqlite"))
    assert seen.text == wrapped(" 0\n 5")


async def test_a_trainer_names_no_file_where_the_operator_named_no_directory(
    stranger: Trainer, database: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = "below a directory that the operator named with --data-dir or the variable TOOLYARD_DATA_DIR."
    for path in (
        str(database),
        f"{tmp_path}/one.sqlite",
        f"{tmp_path}/two.sqlite",
    ):  # the answer does not reveal which of them exists
        seen = await stranger.act("<sql>SELECT * FROM people</sql>", db_path=path)
        assert seen.text == wrapped(f"The database file {path} does not exist {refused}")
    async with stranger.session(db_path=str(database)) as sid:
        output = (await stranger.call(sid, "sql", {"sql": "SELECT name FROM people"}, env="toolbox")).output
        assert output["blocks"][0]["text"].endswith(refused)
    told = [record.getMessage() for record in caplog.records if record.name == "toolyard.sql"]
    assert len([line for line in told if f"refused a trainer a database in {tmp_path}" in line]) == 1


async def test_a_path_may_be_below_the_folder_of_databases(
    stranger: Trainer, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQL_CACHE_DIR", str(database.parent))
    assert (await stranger.act("<sql>SELECT 5</sql>", db_path=str(database))).text == wrapped(" 0\n 5")


async def test_links_lead_out_of_no_directory_unless_to_another_that_is_named(
    trainer: Trainer, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.copy(database, outside / "copy.sqlite")
    link = database.parent / "link.sqlite"
    link.symlink_to(outside / "copy.sqlite")
    (database.parent / "folder").symlink_to(outside)
    for path in (link, database.parent / "folder" / "copy.sqlite", database.parent / "folder" / ".." / "x"):
        assert "--data-dir" in (await trainer.act("<sql>SELECT 5</sql>", db_path=str(path))).text
    monkeypatch.setenv("SQL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "town").symlink_to(database)  # this path lies below --data-dir
    (tmp_path / "cache" / "copy").symlink_to(outside / "copy.sqlite")
    assert (await trainer.act("<sql>SELECT 5</sql>", db_id="town")).text == wrapped(" 0\n 5")
    assert "--data-dir" in (await trainer.act("<sql>SELECT 5</sql>", db_id="copy")).text


@pytest.mark.parametrize("place", [{"placement": "process"}, {"placement": "pool", "pool_processes": 1}])
async def test_directories_count_wherever_sessions_live(database: Path, relative: str, place: dict[str, Any]) -> None:
    with running([], tools="sql", data_dir=(relative,), **place) as served:
        async with Trainer(served.url) as trainer:
            assert (await trainer.act("<sql>SELECT 5</sql>", db_path=str(database))).text == wrapped(" 0\n 5")
            assert "--data-dir" in (await trainer.act("<sql>SELECT 5</sql>", db_path="/etc/hostname")).text


class TownSql(tool.Sql):
    """The class of an author whose tasks name databases."""


class Town(Environment):
    toolsets = (TownSql,)

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"db_path": f"{folder}/town.sqlite"} for folder in TownSql.data_dirs]

    def get_prompt(self) -> str:
        return "Who lives here?"


async def test_an_author_names_directories_of_their_own(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TownSql, "data_dirs", (str(database.parent),))
    with running([Town]) as served:
        async with Trainer(served.url) as client:
            sid = await client.open(env_name="town", split="test", index=0)
            output = (await client.call(sid, "sql", {"sql": "SELECT count(*) FROM people"}, env="town")).output
            assert output["blocks"][0]["text"] == " 0\n 3"


def test_a_directory_that_is_not_there_is_a_mistake_of_the_operator(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"data_dir is '.*/missing', and there is no such directory"):
        Server([], settings=Settings(tools="sql", data_dir=(str(tmp_path / "missing"),)))


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("INSERT INTO people VALUES (4, 'Eve', 1)", "attempt to write a readonly database"),
        ("UPDATE people SET name = 'Eve'", "attempt to write a readonly database"),
        ("DROP TABLE people", "attempt to write a readonly database"),
        ("CREATE TABLE x (a)", "attempt to write a readonly database"),
        ("CREATE TEMP TABLE x (a)", "not authorized"),
        ("ATTACH '{folder}/other.sqlite' AS other", "not authorized"),
        ("VACUUM INTO '{folder}/copy.sqlite'", "authorization denied"),
        ("PRAGMA journal_mode = WAL", "not authorized"),
        ("PRAGMA query_only = OFF", "not authorized"),
        ("PRAGMA database_list", "not authorized"),
        ("SELECT load_extension('x')", "not authorized to use function: load_extension"),
        ("SELECT readfile('/etc/passwd')", "no such function: readfile"),
        ("SELECT 1; SELECT 2", "You can only execute one statement at a time."),
        ("BEGIN", "not authorized"),
        ("SELECT zeroblob(100000000)", "string or blob too big"),
        ("SELECT '\x00'", "the query contains a null character"),
    ],
)
def test_nothing_but_reading_is_possible(database: Path, query: str, problem: str) -> None:
    before = (database.read_bytes(), sorted(database.parent.iterdir()))
    told = tool.observed(query.format(folder=database.parent), tool.Database(str(database)))
    assert told == f"Error executing SQL: {problem}"
    assert (database.read_bytes(), sorted(database.parent.iterdir())) == before


def test_tables_can_be_described(database: Path) -> None:
    told = tool.observed("PRAGMA table_info(people)", tool.Database(str(database)))
    assert [line.split()[1] for line in told.splitlines()[1:]] == ["id", "name", "height"]


def test_a_file_that_is_no_database_says_nothing_of_what_is_in_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the password is swordfish\n" * 100)
    for query in ("SELECT * FROM sqlite_master", "PRAGMA table_info(x)", "SELECT * FROM the"):
        assert tool.observed(query, tool.Database(str(secret))) == "Error executing SQL: file is not a database"


@pytest.mark.parametrize("path", ["/dev/zero", "/", "nowhere.sqlite", "\x00", "x" * 5000])
def test_what_is_no_file_is_said_not_to_exist(path: str) -> None:
    assert tool.observed("SELECT 1", tool.Database(path)) == f"The database file {path} does not exist."


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "does not exist" in tool.observed("SELECT 1", tool.Database(str(tmp_path / "pipe")))


def test_a_path_cannot_say_how_it_is_opened(database: Path) -> None:
    odd = database.with_name("a?mode=rwc#%41.sqlite")
    odd.write_bytes(database.read_bytes())
    assert tool.observed("DELETE FROM people", tool.Database(str(odd))).endswith("readonly database")
    assert tool.observed("SELECT count(*) FROM people", tool.Database(str(odd))) == " 0\n 3"
    odd.unlink()


async def test_the_model_cannot_choose_the_database(trainer: Trainer, database: Path) -> None:
    call = json.dumps({"name": "sql", "arguments": {"sql": "SELECT 1", "db_path": str(database)}})
    assert "names no database" in (await trainer.act(f"<tool_call>{call}</tool_call>")).text


async def test_it_is_a_tool_over_ors_too(trainer: Trainer, database: Path) -> None:
    listed = {tool["name"]: tool for tool in (await trainer.get("/toolbox/tools")).json()["tools"]}
    assert list(listed["sql"]["input_schema"]["properties"]) == ["sql"]
    async with trainer.session(db_path=str(database)) as sid:
        output = (await trainer.call(sid, "sql", {"sql": "SELECT name FROM people"}, env="toolbox")).output
        assert [block["text"] for block in output["blocks"]] == ["          0\n        Ann\nBartholomew\n       None"]
        assert output["metadata"] == {"parsed_sql": "SELECT name FROM people"}
        output = (await trainer.call(sid, "solution", {"solution": "SELECT 1"}, env="toolbox")).output
        assert output["finished"] is True


async def test_many_queries_at_once_all_get_their_own_rows(trainer: Trainer, database: Path) -> None:
    async def ask(n: int) -> None:
        seen = await trainer.act(f"<sql>SELECT n FROM numbers WHERE n = {1000 + n}</sql>", db_path=str(database))
        assert seen.text == wrapped(f"   0\n{1000 + n}")

    async with anyio.create_task_group() as group:
        for n in range(100):
            group.start_soon(ask, n)
    assert threading.active_count() < 200
