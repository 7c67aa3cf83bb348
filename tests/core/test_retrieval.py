"""`ToolIndex`: which tools come first for a question, and that no input is too odd for it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolyard.core.families import taken_apart
from toolyard.core.retrieval import ToolIndex
from toolyard.core.tool import ToolSpec
from toolyard.core.words import stem, unglued, words


def spec(name: str, description: str = "", **parameters: str) -> ToolSpec:
    properties = {name: {"type": "string", "description": text} for name, text in parameters.items()}
    return ToolSpec(name=name, description=description, input_schema={"type": "object", "properties": properties})


SPECS = [
    spec("FileSystemEnv_read_from_file", "Open a text file of the workspace.", filepath="Where the file is."),
    spec("FileSystemEnv_write_to_file", "Write lines to a text file of the workspace.", content="What to write."),
    spec("WebEnv_browse_website", "Open a page and return its text.", url="The address of the page."),
    spec("calculator", "The value of an arithmetic expression.", expression="Such as 1 + 2."),
    spec("current_weather_for_open_sky", "Temperature, wind and rain right now.", city="Name of a town."),
    spec("forecast_for_open_sky", "The next five days.", city="Name of a town."),
    spec("stations_for_open_sky", "Where measurements come from."),
    spec("quotes_for_stockbrokerapi", "Last price of a share.", symbol="Ticker of the share."),
    spec("search_movies_for_moviesdatabase", "Titles that match.", query="Words of the title."),
    spec("rapi_qr_monkey_make_code", "A picture that phones can scan."),
    spec("rapi_code_words_explain", "What a code stands for."),
    spec("rapi_qr_monkey_styles", "Colours and shapes."),
    spec("rapi_parcel_post_track", "Where a shipment is.", number="Printed on the label."),
    spec("rapi_parcel_post_offices", "Addresses and opening hours."),
]


@pytest.fixture(scope="module")
def index() -> ToolIndex:
    return ToolIndex(SPECS)


def names(index: ToolIndex, question: str, top_k: int = 5) -> list[str]:
    return [found.name for found in index.search(question, top_k)]


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("read a file", "FileSystemEnv_read_from_file"),
        ("Please, could you write these lines into a file for me?", "FileSystemEnv_write_to_file"),
        ("what is the weather in Paris", "current_weather_for_open_sky"),
        ("I need the forecasts", "forecast_for_open_sky"),
        ("track my shipment", "rapi_parcel_post_track"),
        ("expressions to evaluate", "calculator"),
        ("ticker", "quotes_for_stockbrokerapi"),  # only a parameter says so
        ("movies about robots", "search_movies_for_moviesdatabase"),
        ("browseWebsite", "WebEnv_browse_website"),
        ("a qrcode", "rapi_qr_monkey_make_code"),
    ],
)
def test_the_tool_that_is_meant_comes_first(index, question, first):
    assert names(index, question)[0] == first


@pytest.mark.parametrize("asked", SPECS, ids=lambda one: one.name)
def test_a_tool_is_found_by_its_name(index, asked):
    assert names(index, asked.name)[0] == asked.name
    assert names(index, f"Use the {asked.name.replace('_', ' ')} API, please.", 2)[0] == asked.name


def test_the_relatives_of_a_tool_that_fits_come_before_strangers_that_share_a_common_word(index):
    assert names(index, "the rain in some town, by name", 3)[0] == "current_weather_for_open_sky"
    assert set(names(index, "temperature and wind", 3)) == {one.name for one in SPECS if "open_sky" in one.name}


def test_a_question_that_asks_for_two_things_finds_both(index):
    question = "I want to read a file. Additionally, tell me where my shipment is."
    assert {"FileSystemEnv_read_from_file", "rapi_parcel_post_track"} <= set(names(index, question))


def test_what_is_quoted_is_a_value_and_not_a_wish_unless_it_is_a_name(index):
    assert names(index, "Search the titles for 'weather forecast file'")[0] == "search_movies_for_moviesdatabase"
    assert names(index, "Name a town and call 'Current Weather'", 1) == ["current_weather_for_open_sky"]
    assert names(index, "'shipment'")[0] == "rapi_parcel_post_track"


def test_rare_words_count_for_more_than_common_ones():
    common = [spec(f"list_{word}", "Get all data of a user.") for word in ("apples", "pears", "plums")]
    index = ToolIndex([*common, spec("zebra_facts", "About animals.")])
    assert names(index, "get all data of a user about a zebra")[0] == "zebra_facts"


def test_at_most_top_k_are_found_and_none_when_none_are_asked_for(index):
    assert len(names(index, "file", 2)) == 2
    assert names(index, "file", 1) == names(index, "file", 5)[:1]
    assert names(index, "file", 0) == names(index, "file", -3) == []
    assert len(names(index, "file of the page", 10**9)) <= len(SPECS)


@pytest.mark.parametrize("question", ["", " \n ", "...", "please help me with the API", "xyzzy plugh", "\0", "\ud800"])
def test_a_question_that_is_about_nothing_here_finds_nothing(index, question):
    assert names(index, question) == []


def test_what_comes_back_is_the_spec_that_was_given(index):
    assert index.search("read a file", 1)[0] is SPECS[0]


def test_of_two_tools_with_the_same_name_there_is_the_first():
    first, second = spec("echo", "Says it again."), spec("echo", "Repeats.")
    assert ToolIndex([first, second]).search("echo", 5) == [first]
    assert ToolIndex([first, second]).search("repeats", 5) == []


def test_no_tools_can_be_searched_too():
    assert ToolIndex([]).search("read a file", 5) == []


@pytest.mark.parametrize(
    "schema",
    [None, {}, {"properties": None}, {"properties": []}, {"properties": {"number": True, "b": {"description": 7}}}],
)
def test_a_schema_of_any_form_is_taken(schema):
    odd = ToolSpec(name="odd", description="Even so.", input_schema=schema)
    assert ToolIndex([odd, *SPECS]).search("odd", 1) == [odd]


@pytest.mark.parametrize(
    ("description", "question"),
    [
        ("Türkiye'deki kargo şirketleri", "TÜRKIYE kargo"),
        ("Прогноз погоды", "какой прогноз?"),
        ("查询天气预报", "天气"),
        ("Où est la poste", "ou se trouve la POSTE"),
        ("मौसम की जानकारी", "मौसम"),
    ],
)
def test_other_languages_have_words_too(description, question):
    there = spec("there", description)
    assert ToolIndex([*SPECS, there]).search(question, 1) == [there]


def test_a_tool_whose_name_is_made_of_fillers_is_found_by_it():
    helper = spec("help", "Shows what there is.")
    assert ToolIndex([*SPECS, helper]).search("help", 1) == [helper]


def test_a_huge_question_takes_no_longer_than_a_long_one(index):
    began = time.process_time()
    for question in ("read a file. " * 100_000, "x" * 10**6, "\n" * 10**6, "' " * 10**6, "aB" * 10**6):
        index.search(question, 5)
    assert time.process_time() - began < 2
    assert names(index, "read a file " * 100_000)[0] == "FileSystemEnv_read_from_file"


def test_hostile_names_and_texts_do_not_hold_it_up():
    began = time.process_time()
    texts = [
        "a_" * 50_000,
        "_for_" * 50_000,
        "ab" * 50_000,
        "aB" * 50_000,
        "é" * 50_000,
        "天" * 50_000,
        "",
        "_",
        "'" * 999,
    ]
    ToolIndex([spec(text, text, **{text: text}) for text in texts]).search(texts[2], 5)
    assert time.process_time() - began < 5


def test_the_same_question_has_the_same_answer_in_every_process():
    code = (
        "from tests.core.test_retrieval import SPECS, ToolIndex\n"
        "print([spec.name for spec in ToolIndex(SPECS).search('the text of a file, a page and a share in a town', 13)])"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(answers) == 1


def test_thousands_of_tools_are_indexed_and_searched_quickly():
    chance = random.Random(5)
    vocabulary = ["".join(chance.choices("bcdfglmnprst", k=2) + chance.choices("aeiou", k=3)) for _ in range(3000)]

    def text(count: int) -> str:
        return " ".join(chance.choices(vocabulary, k=count))

    specs = [spec(f"rapi_{text(3).replace(' ', '_')}_{at}", text(20), **{text(1): text(6)}) for at in range(4000)]
    began = time.process_time()
    index = ToolIndex(specs)
    assert time.process_time() - began < 4
    began = time.process_time()
    for _ in range(100):
        index.search(f"Please find {text(6)}. I also need {text(5)}.", 5)
    assert (time.process_time() - began) / 100 < 0.02


# Words and names.


def test_words_are_split_where_people_see_them():
    assert words("getUserIDs2 XMLParser snake_case-and URLs mp3") == [
        *("get", "user", "ids", "2", "xml", "parser", "snake", "case", "and", "urls", "mp", "3")
    ]


@pytest.mark.parametrize(
    "alike",
    [
        ("movie", "movies"),
        ("city", "cities"),
        ("match", "matches", "matching", "matched"),
        ("stop", "stops", "stopped", "stopping"),
        ("generate", "generates", "generated", "generating"),
        ("status", "status"),
        ("class", "classes"),
    ],
)
def test_endings_make_no_difference(alike):
    assert len({stem(word) for word in alike}) == 1


@pytest.mark.parametrize(("one", "other"), [("new", "news"), ("bus", "buy"), ("sing", "single"), ("mars", "marry")])
def test_other_words_stay_other_words(one, other):
    assert stem(one) != stem(other)


def test_glued_words_are_taken_apart_only_if_all_of_them_are_known():
    known = {"get", "random", "image", "in"}
    assert unglued("getrandomimage", known) == ["get", "random", "image"]
    assert unglued("getrandomthing", known) == []
    assert unglued("getin", known) == ["get", "in"]


def test_a_family_is_what_the_names_of_several_tools_share():
    keys = [name.key for name in taken_apart(["a_for_x", "b_for_x", "c_for_y", "Env_a", "Env_b", "get_a", "get_b"])]
    assert keys[0] == keys[1] != keys[2]
    assert keys[3] == keys[4]
    assert keys[5] != keys[6], "a verb makes no family"


def test_the_longest_ending_that_is_shared_is_the_family():
    several = taken_apart(["java_jobs_for_jobs_for_it", "python_jobs_for_jobs_for_it", "search_for_news_for_daily"])
    assert [(name.own, name.family) for name in several] == [
        ("java_jobs", "jobs_for_it"),
        ("python_jobs", "jobs_for_it"),
        ("search_for_news", "daily"),
    ]


def test_a_toolset_is_a_family_whatever_its_tools_are_called():
    several = taken_apart(["PaperEnv_search_for_papers", "PaperEnv_read"])
    assert [(name.own, name.family) for name in several] == [("search_for_papers", "PaperEnv"), ("read", "PaperEnv")]
