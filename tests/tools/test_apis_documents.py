"""Reading OpenAPI documents: what becomes a tool, and the errors for wrong documents."""

from __future__ import annotations

import copy
import json
import re
import time
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools.api_server import document, get, parameter
from toolyard.core.errors import DefinitionError, ServiceUnavailable, ToolError
from toolyard.core.output import JsonObject
from toolyard.core.schema import fit
from toolyard.core.tool import ToolSpec
from toolyard.tools.apis import files
from toolyard.tools.apis.collection import collection
from toolyard.tools.apis.document import Document
from toolyard.tools.apis.names import UniqueNames
from toolyard.tools.apis.openapi import read_openapi
from toolyard.tools.apis.operation import HttpOperation

LIBRARY = Path(__file__).parents[2] / "examples" / "data" / "library.json"
URL = "https://api.example"


def read(said: Any, base_url: str = URL, keys: Any = "") -> dict[str, tuple[ToolSpec, HttpOperation]]:
    found = read_openapi(Document(said, "doc"), UniqueNames(), base_url=base_url, keys=keys)
    return {spec.name: (spec, operation) for spec, operation in found}


def properties(schema: Any, **components: Any) -> JsonObject:
    """A schema, converted as the one argument of a tool."""
    paths = {"/q": get({"name": "a", "in": "query", "schema": schema}, operationId="q")}
    (spec, _) = read(document(paths, components={"schemas": components}))["q"]
    assert spec.input_schema is not None
    argument: JsonObject = spec.input_schema["properties"]["a"]
    return argument


# What becomes a tool


def test_a_collection_is_called_as_its_document_and_its_tools_are_not_listed() -> None:
    library = collection(LIBRARY)
    assert (library.__name__, library.prefixed) == ("TownLibrary", True)
    assert [*library.catalogue] == ["searchBooks", "getBook", "getCover", "borrowBook", "returnBook", "getReader"]
    assert library.catalogue["getBook"].description == "All that is known of one book.\n(Town Library)"


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Pet-shop API (v2)", "PetShopAPIV2"),
        ("3D printers", "Api3DPrinters"),
        ("東京", "Doc"),
        ("a_b", "AB"),
        ("", "Doc"),
    ],
)
def test_the_name_of_a_collection_is_a_word_without_underscores(tmp_path: Path, title: str, name: str) -> None:
    (tmp_path / "doc.json").write_text(json.dumps({**document({}), "info": {"title": title}}))
    assert collection(tmp_path / "doc.json", base_url=URL).__name__ == name


def test_names_of_tools_are_words_each_of_which_is_there_once() -> None:
    long = "x" * 100
    paths = {f"/{n}": get(operationId=name) for n, name in enumerate(["a.b c", "a-b-c", "a_b_c", long, long + "y"])}
    paths["/pets/{id}/toys"] = get(parameter("id", "path"))
    assert [*read(document(paths))] == ["a_b_c", "a_b_c_2", "a_b_c_3", "x" * 64, "x" * 62 + "_2", "get_pets_id_toys"]


def test_descriptions_say_what_there_is_and_are_cut() -> None:
    paths = {"/a": get(), "/b": get(summary="Short.", description="d" * 2000)}
    a, b = (spec.description for spec, _ in read(document(paths)).values())
    assert a == "GET /a\n(An API)"
    assert b.startswith("Short.\nddd")
    assert len(b) == 1024


def test_parameters_of_the_path_hold_for_its_operations_which_may_say_otherwise() -> None:
    item = {**get(parameter("b", "query", schema={"type": "integer"})), "parameters": [parameter("a", "query")]}
    item["parameters"] += [parameter("b", "query", schema={"type": "string"})]
    ((spec, _),) = read(document({"/q": item})).values()
    assert spec.input_schema is not None
    assert spec.input_schema["properties"] == {"a": {}, "b": {"type": "integer"}}


def test_a_part_of_the_path_that_is_not_described_is_asked_for_all_the_same() -> None:
    ((spec, operation),) = read(document({"/q/{a}/{b}": get(parameter("b", "path"))})).values()
    assert spec.input_schema is not None
    assert spec.input_schema["required"] == ["b", "a"]
    assert operation.request({"a": 1, "b": 2}).url == f"{URL}/q/1/2"


def test_what_the_api_fills_in_itself_is_not_asked_of_the_agent() -> None:
    schema = {"required": ["id", "n"], "properties": {"id": {"readOnly": True}, "n": {"type": "string"}}}
    assert properties(schema) == {"required": ["n"], "properties": {"n": {"type": "string"}}}


@pytest.mark.parametrize(
    ("said", "made"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"enum": ["a"], "nullable": True}, {"enum": ["a", None]}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
        ({"exclusiveMaximum": 1}, {"exclusiveMaximum": 1}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "file", "example": "x", "xml": {}, "discriminator": {}}, {"examples": ["x"]}),
        ({"pattern": "(?<!a)b"}, {"pattern": "(?<!a)b"}),
        ({"pattern": "("}, {}),
        ({"minLength": -1, "required": True, "enum": [], "multipleOf": 0}, {}),
        ({"default": [[[0] * 100] * 100] * 100}, {}),
        (True, {}),
        (False, {"not": {}}),
        ({"items": {"$ref": "#/components/schemas/A"}}, {"items": {"type": "integer"}}),
        ({"$ref": "#/components/schemas/A", "description": "d"}, {"type": "integer", "description": "d"}),
        ({"allOf": [{"$ref": "#/components/schemas/B~1c"}]}, {"allOf": [{"type": "boolean"}]}),
    ],
)
def test_schemas_of_both_versions_become_json_schema(said: Any, made: Any) -> None:
    assert properties(said, **{"A": {"type": "integer"}, "B/c": {"type": "boolean"}}) == made


def test_a_schema_that_contains_itself_ends() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Tree", "description": "more"}}}
    made = properties({"$ref": "#/components/schemas/Tree"}, Tree=tree)
    assert made == {"type": "object", "properties": {"next": {"description": "more"}}}


def test_schemas_that_multiply_are_bounded() -> None:
    levels = {f"L{n}": {"anyOf": [{"$ref": f"#/components/schemas/L{n + 1}"}] * 10} for n in range(10)}
    started = time.process_time()
    made = properties({"$ref": "#/components/schemas/L0"}, **levels, L10={"type": "string"})
    assert len(json.dumps(made)) < 10_000
    assert time.process_time() - started < 2


def test_a_document_of_a_thousand_operations_is_read_quickly() -> None:
    item = {"post": {**json.loads(LIBRARY.read_text())["paths"]["/loans"]["post"], "operationId": "borrow"}}
    said = {**json.loads(LIBRARY.read_text()), "paths": {f"/loans/{n}": item for n in range(1000)}}
    started = time.process_time()
    assert len(read(said)) == 1000
    assert time.process_time() - started < 2


def test_what_cannot_be_asked_for_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    upload = {"content": {"multipart/form-data": {"schema": {}}}, "required": True}
    paths = {
        "/a": {"post": {"requestBody": upload}},
        "/b/{x}": get(parameter("x", "path", style="matrix")),
        "/c": get(servers=[{"url": "https://elsewhere.example"}]),
        "/c2": get(servers=[{"url": "/v2"}]),
        "/d": {"post": {"operationId": "d", "requestBody": {**upload, "required": False}}},
        "/e": {"options": {}, "head": {}, "trace": {}},
        "x-more": 1,
    }
    assert [*read(document(paths, servers=[{"url": URL}]), base_url="")] == ["d"]
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "doc: POST /a is left out: its body is 'multipart/form-data'",
        "doc: GET /b/{x} is left out: the parameter 'x' is written in the style 'matrix'",
        "doc: GET /c is left out: it has a server of its own, elsewhere.example; give a base URL to ask there",
        "doc: GET /c2 is left out: doc: #/paths/~1c2/get/servers/0/url: "
        "'/v2' does not say on which host; give a base URL",
    ]


def test_the_server_is_the_first_of_the_document_or_the_one_that_the_operator_names() -> None:
    servers = [
        {
            "url": "https://{place}.example:{port}/v1/",
            "variables": {"place": {"default": "eu"}, "port": {"default": "8443"}},
        }
    ]
    said = document({"/q": get(operationId="q")}, servers=servers)
    assert read(said, base_url="")["q"][1].request({}).url == "https://eu.example:8443/v1/q"
    assert read(said)["q"][1].request({}).url == "https://api.example/q"


# Wrong documents

COOKIE = {"securitySchemes": {"k": {"type": "apiKey", "in": "cookie", "name": "a; admin=1"}}}
FIRST = ": #/paths/~1q/get/parameters/0"


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"openapi": "2.0"}, ": this is OpenAPI '2.0'; 3.0 and 3.1 can be read"),
        ({"swagger": "2.0"}, ": this is OpenAPI '2'; 3.0 and 3.1 can be read"),
        (document([]), ": #/paths: an object is expected here, not list"),  # type: ignore[arg-type]
        (document({"q": get()}), ": #/paths/q: a path begins with a slash"),
        (document({"/a/../b": get()}), ": #/paths/~1a~1..~1b: '/a/../b' has '.' or '..' as one of its steps"),
        (document({"/{a": get()}), ": #/paths/~1{a: a brace"),
        (document({"/q": get({"name": "a"})}), f"{FIRST}/in: a text is expected here, not None"),
        (document({"/q": get(parameter("a", "moon"))}), f"{FIRST}/in: 'moon' is none of path"),
        (document({"/q": get(parameter("a\n", "header"))}), f"{FIRST}/name: 'a\\n' cannot be sent as a name"),
        (
            document({"/q": get()}, security=[{"k": []}], components=COOKIE),
            ": #/components/securitySchemes/k/name: 'a;",
        ),
        (document({"/q": get(parameter("a", "query", schema=3))}), f"{FIRST}/schema: an object"),
        (document({"/q": get({"$ref": "#/nowhere"})}), f"{FIRST}: there is no '#/nowhere'"),
        (document({"/q": get({"$ref": "other.json#/a"})}), f"{FIRST}: 'other.json#/a' is not in"),
        (document({"/q": {"$ref": "#/paths/~1q"}}), ": #/paths/~1q: this refers to itself"),
        (document({"/q": get(security=[{"k": []}])}), ": #/paths/~1q/get/security: there is no security scheme 'k'"),
        (document({"/q": get()}, security={}), ": #/security: a list is expected here, not dict"),
    ],
)
def test_what_is_wrong_with_a_document_is_said_with_its_place(said: Any, problem: str) -> None:
    with pytest.raises(DefinitionError, match=f"^doc{re.escape(problem)}"):
        read(said, keys="k-123")


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        (None, "doc: #/servers: the document names no server; give a base URL"),
        ([{"url": "/v1"}], "doc: #/servers/0/url: '/v1' does not say on which host"),
        ([{"url": "ftp://a.example"}], "doc: #/servers/0/url: 'ftp://a.example' is not an address of an HTTP server"),
        ([{"url": "https://a.example/?k=v"}], "doc: #/servers/0/url: .* nothing but a host and a path"),
        ([{"url": "https://me:pw@a.example/"}], "doc: #/servers/0/url: .* nothing but a host and a path"),
        ([{"url": "https://a.example:x"}], "doc: #/servers/0/url: .* is not an address"),
        ([{"url": "https://[a"}], "doc: #/servers/0/url: .* is not an address"),
        ([3], "doc: #/servers/0: an object is expected here, not 3"),
    ],
)
def test_a_server_that_cannot_be_asked_is_told(servers: Any, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        read(document({}, servers=servers), base_url="")


@pytest.mark.parametrize("content", ["", "{", "[1", "\x00", '"text"', "3", "{}", "[]", '{"a": NaN}', "[" * 100_000])
def test_a_file_that_is_something_else_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "doc.json").write_text(content)
    with pytest.raises(DefinitionError, match=re.escape(f"{tmp_path / 'doc.json'}: ")):
        collection(tmp_path / "doc.json", base_url=URL)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"none\.json: it cannot be read: No such file"):
        collection(tmp_path / "none.json")
    with pytest.raises(DefinitionError, match=r"there is no file .* in this folder"):
        collection(tmp_path)


def test_yaml_is_read_as_if_it_were_json(tmp_path: Path) -> None:
    (tmp_path / "doc.yaml").write_text(
        "openapi: 3.1.0\ninfo: {title: In YAML}\npaths:\n  /q:\n    get:\n      operationId: q\n      parameters:\n"
        "        - {name: day, in: query, schema: {type: string, default: 2024-01-02}}\n      responses: {200: {}}\n"
    )
    found = collection(tmp_path / "doc.yaml", base_url=URL)
    assert found.__name__ == "InYAML"
    schema = found.catalogue["q"].input_schema
    assert schema is not None
    assert schema["properties"]["day"] == {"type": "string", "default": "2024-01-02"}


@pytest.mark.parametrize("content", ["a: [", "a: &a [*a]\nopenapi: *a", "!!python/object:os.system {}", "- ? {}\n"])
def test_yaml_that_is_wrong_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "doc.yml").write_text(content)
    with pytest.raises(DefinitionError, match=re.escape(f"{tmp_path / 'doc.yml'}: ")):
        collection(tmp_path / "doc.yml", base_url=URL)


def test_without_its_package_yaml_is_not_read_and_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "yaml", None)
    (tmp_path / "doc.yaml").write_text("a: 1")
    with pytest.raises(DefinitionError, match="pip install pyyaml; or convert the file to JSON"):
        collection(tmp_path / "doc.yaml")


# Absurd documents

WORDS = [
    "#",
    "#/",
    "#/paths",
    "#/components/schemas/Loan",
    "header",
    "query",
    "object",
    "{",
    "/{a}",
    "..",
    "$ref",
    "in",
]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
JSON = st.recursive(
    LEAVES | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.sampled_from(WORDS), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


GOOD = json.loads(LIBRARY.read_text())
PLACES = places(GOOD)


def changed(said: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    said = copy.deepcopy(said)
    inner = said
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return said


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES[1:]), JSON, JSON)
def test_a_document_with_anything_in_any_place_is_read_or_refused_with_its_place(
    path: tuple[Any, ...], value: Any, argument: Any
) -> None:
    try:
        found = read(changed(GOOD, path, value), keys="k-123")
    except DefinitionError as error:
        problem = str(error)
        found = {}
    else:
        problem = ""
    assert problem.startswith("doc: ") or not problem
    for spec, operation in found.values():
        assert re.fullmatch(r"[A-Za-z0-9_]{1,64}", spec.name)
        schema: Any = spec.input_schema
        jsonschema_rs.meta.validate(schema)
        arguments = dict.fromkeys(schema["properties"], argument)
        fit(arguments, schema)
        try:
            request = operation.request(arguments)
        except (ToolError, ServiceUnavailable):
            continue
        assert request.url.startswith(URL)
        assert request.url.isascii()
        assert request.url.isprintable()
        assert all(text.isascii() and text.isprintable() for pair in request.headers.items() for text in pair)
