"""The cells of a notebook, and their file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from toolyard.core.errors import ToolError
from toolyard.tools.notebook_outputs import Output, count_of, length, nbformat, note, outputs_of, size_of, text_of

MOST = 8 * 2**20
"""The most bytes of a notebook. It drops outputs, from the first cell on, to make room for others."""
FILE_MOST = 2 * MOST
CELLS_MOST = 2000
_PARTS_MOST = 2_000_000
"""The most values in a file: a list or a text takes many times the memory of its bytes."""
_OUTPUTS_MOST = 100_000
LEFT_OUT = "the output is left out: the notebook is too large"

_METADATA = {
    "kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"},
    "language_info": {"name": "python"},
}


class Notebook:
    """Cells in order. They are numbered from 0."""

    def __init__(self, cells: list[Any] | None = None) -> None:
        self._cells: list[Any] = cells or []

    @classmethod
    def read(cls, data: bytes) -> Notebook:
        """Read a file of unknown origin. Raises ValueError that says what is wrong with it."""
        if len(data) > FILE_MOST or sum(map(data.count, (b"[", b"{", b'"'))) > _PARTS_MOST:
            raise ValueError("it is too large")
        try:
            said = orjson.loads(data)  # refuses lone surrogates and bottomless nesting
            if not isinstance(said, Mapping) or said.get("nbformat") != 4:
                raise ValueError("it is not a notebook of format 4")
            cells = said["cells"]
            if not isinstance(cells, list) or len(cells) > CELLS_MOST:
                raise ValueError(f"it has no list of cells, or more than {CELLS_MOST}")
            if sum(len(cell.get("outputs", ())) for cell in cells) > _OUTPUTS_MOST:
                raise ValueError("it has too many outputs")
            read = cls([_cell(one) for one in cells])
            nbformat.validate(read._node())
        except (LookupError, TypeError, AttributeError, nbformat.ValidationError) as error:
            raise ValueError(f"{type(error).__name__}: {error!s:.200}") from error
        return read

    def written(self) -> bytes:
        text: str = nbformat.v4.writes(self._node())
        return text.encode()

    def place(self, index: int | None, code: str) -> int:
        """Put a cell after the others, or in the place of one, and return its number. Negative numbers count from the
        end."""
        count = len(self._cells)
        at = count if index is None else index + count if index < 0 else index
        if not 0 <= at <= count:
            raise ToolError(f"cell_index {index} is out of range: the notebook has {count} cells")
        try:
            code.encode()
        except UnicodeEncodeError as error:  # no file can hold it
            raise ToolError(f"the code is not text: {error.reason}") from None
        sources = sum(length(cell.source) for number, cell in enumerate(self._cells) if number != at)
        if at >= CELLS_MOST or sources + length(code) > MOST // 2:
            raise ToolError("the notebook is full: replace a cell, by its cell_index, instead of adding one")
        return at

    def put(self, at: int, code: str, outputs: list[Output], count: int | None) -> None:
        self._cells[at : at + 1] = [nbformat.v4.new_code_cell(code, outputs=outputs, execution_count=count)]
        self._make_room(at)

    def text(self) -> str:
        return "".join(self._texts())

    def _texts(self) -> Iterator[str]:
        for index, cell in enumerate(self._cells):
            yield f"= Cell {index} =\n{cell.source}\n"
            if outputs := cell.get("outputs"):
                yield f"= Output {index} =\n{text_of(outputs)}\n"

    def _make_room(self, latest: int) -> None:
        sizes = [size_of(cell.get("outputs", ())) for cell in self._cells]
        excess = sum(sizes) + sum(length(cell.source) for cell in self._cells) - MOST
        for at, cell in enumerate(self._cells):
            if excess <= 0:
                return
            if at != latest and cell.get("outputs"):
                cell.outputs = [note(LEFT_OUT)]
                excess -= sizes[at] - size_of(cell.outputs)

    def _node(self) -> Any:
        return nbformat.v4.new_notebook(metadata=_METADATA, cells=self._cells)


def _cell(said: Any) -> Any:  # JSON that is not trusted
    source = said["source"]
    source = "".join(source) if isinstance(source, list) else source
    if not isinstance(source, str):
        raise TypeError("a cell has no text")
    match said["cell_type"]:
        case "code":
            outputs = outputs_of(said["outputs"])
            return nbformat.v4.new_code_cell(source, outputs=outputs, execution_count=count_of(said["execution_count"]))
        case "markdown":
            return nbformat.v4.new_markdown_cell(source)
        case "raw":
            return nbformat.v4.new_raw_cell(source)
    raise ValueError(f"there are no cells of type {said['cell_type']!r:.100}")
