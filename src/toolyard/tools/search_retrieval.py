"""`search_retrieval`: passages from a retriever, as in Search-R1. `answer`: the answer that ends the task.

The retriever is a server at $RETRIEVER_URL, for instance `toolyard retriever`, or a local index of $RETRIEVER_CORPUS.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from toolyard.core.errors import ServiceUnavailable
from toolyard.core.forms import Tagged
from toolyard.core.output import TextBlock, ToolOutput
from toolyard.core.tool import tool
from toolyard.tools.corpus import corpus_named, missing_corpus
from toolyard.tools.remote import RemoteToolset, blaming, json_of

SECONDS = 30
URL = "http://127.0.0.1:8000/retrieve"
TOPK = 3


class SearchRetrieval(RemoteToolset):
    """Keeps no results: a retriever is near, and fast."""

    @classmethod
    def missing(cls) -> str:
        try:
            topk()
        except ValueError as error:
            return str(error)
        return missing_corpus("RETRIEVER_CORPUS")

    @tool(
        form=Tagged("search", "query", before="\n\n<information>", after="</information>\n\n"),
        concurrent=True,
    )
    async def search_retrieval(self, query: str) -> ToolOutput:
        """Search the corpus and return the passages that fit a query best.

        Args:
            query: What to look for, in plain words.
        """
        found = await self._passages(query)
        return ToolOutput(blocks=[TextBlock(text=passages_text(found))], metadata={"passages": len(found)})

    @tool(form=Tagged("answer", "answer", before="", after=""))
    async def answer(self, answer: str) -> ToolOutput:
        """Give the final answer to the question. The episode is over with it.

        Args:
            answer: The answer.
        """
        return ToolOutput(metadata={"answer": answer, "valid": False}, finished=True)

    async def _passages(self, query: str) -> Sequence[str]:
        if os.environ.get("RETRIEVER_CORPUS"):
            corpus = await corpus_named("RETRIEVER_CORPUS")
            return [hit.passage.contents for hit in corpus.search(query, topk())]
        url = os.environ.get("RETRIEVER_URL", URL)
        with blaming(f"the retriever at {url}"):
            body = {"queries": [query], "topk": topk(), "return_scores": True}
            return passages_in(json_of(await self.post(url, body, seconds=SECONDS)))


def topk() -> int:
    given = os.environ.get("RETRIEVER_TOPK") or str(TOPK)
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"RETRIEVER_TOPK is {given!r}; it must be a whole number of at least 1")
    return int(given)


def passages_in(answer: object) -> Sequence[str]:
    """The contents of the passages for the first query; retrievers send them with or without scores."""
    match answer:
        case {"result": [list(found), *_]}:
            return [_contents(one) for one in found]
        case _:
            raise ServiceUnavailable(f'its answer has no "result" with a list for the query: {str(answer)[:200]}')


def _contents(found: object) -> str:
    match found:
        case {"document": {"contents": str(contents)}} | {"contents": str(contents)}:
            return contents
        case _:
            raise ServiceUnavailable(f'one of its passages has no "contents": {str(found)[:200]}')


def passages_text(passages: Sequence[str]) -> str:
    return "\n".join(_told(i, passage) for i, passage in enumerate(passages, 1)).strip()


def _told(number: int, contents: str) -> str:
    title, _, text = contents.partition("\n") if contents else ("No title", "", "No content")
    return f"Doc {number}(Title: {title}) {text}"
