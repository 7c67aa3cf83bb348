"""`text_browser`: shows web pages as text in a real Chromium, and acts on them. One window for each session."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from toolyard.browser.actions import Action, Click, GoBack, Goto, Look, Scroll, Stop, TypeText, parse
from toolyard.browser.chromium import BrowserSettings
from toolyard.browser.chromium import missing as missing_chromium
from toolyard.browser.views import PageView
from toolyard.core.environment import Toolset
from toolyard.core.errors import ToolError
from toolyard.core.forms import TOOL_CALL_END
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool

with suppress(ImportError):  # an extra; without it, missing() says so
    from toolyard.browser.shared import Visit, open_visit

STEPS = 10
"""An episode in plain text ends after this many actions."""
INVALID = "The action is invalid, please retry"

_ACTION = re.compile(r"\A(?>.*?<think>)(?>.*?</think>\s```)(.*?)```", re.DOTALL)
"""Atomic groups, so that a text with thousands of these tags is not slow to read."""


@dataclass(frozen=True, slots=True)
class BrowserForm:
    """Reads thoughts, one white space, and an action in a fence. An empty text asks for the page."""

    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        if not text:
            return {"action": ""}
        found = _ACTION.search(text)
        return {"action": found[1].strip()} if found else None

    def answer(self, text: str, result: str) -> str:
        return f"\n<tool_response>\n{result}\n</tool_response>\n" if TOOL_CALL_END in text else result


@dataclass(frozen=True, slots=True)
class Episode:
    """The task of a session, from the trainer."""

    question: str = ""
    truth: Sequence[str] = ()
    url: str = ""
    steps: int = STEPS

    @classmethod
    def of(cls, said: JsonObject) -> Episode:
        """Read it from the extra fields, or from fields that some trainers nest in them."""
        inner = said.get("extra_fields")
        said = {**said, **inner} if isinstance(inner, Mapping) else said
        truth, url, steps = said.get("gt"), said.get("url"), said.get("max_steps")
        return cls(
            question=str(said.get("question") or ""),
            truth=[str(one) for one in (truth if isinstance(truth, list) else [truth])] if truth is not None else (),
            url=url if isinstance(url, str) else "",
            steps=steps if isinstance(steps, int) and steps > 0 else STEPS,
        )

    def reward(self, answer: str) -> float | None:
        """1 if the answer is right, 0 if not, None if the right answers are unknown."""
        return float(_plain(answer) in map(_plain, self.truth)) if self.truth else None


class TextBrowser(Toolset):
    """Opens a window when first needed. All its tools work on the same page."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._visit: Visit | None = None
        self._steps = 0
        self._said = "None"
        """The last action, for the head of the page."""
        self._turn = asyncio.Lock()

    @classmethod
    def missing(cls) -> str:
        return missing_chromium()

    async def teardown(self) -> None:
        async with self._turn:
            await self._leave()

    @tool(form=BrowserForm())
    async def text_browser(
        self, action: str = "", trainer: Annotated[dict[str, Any], Given(everything=True)] = {}
    ) -> ToolOutput:
        """Do one thing in a web browser and read the page that it leads to, on which everything usable has a number.

        Args:
            action: One of: click [id] · type [id] [text] [press_enter_after=0|1] · select [id] [option] · hover [id] ·
                press [key_comb] · scroll [up|down] · goto [url] · go_back · go_forward · new_tab ·
                tab_focus [tab_index] · close_tab · stop [answer]. Nothing reads the page as it is.
        """
        episode = Episode.of(trainer)
        async with self._turn:
            if not action.strip():
                view = await self._look(episode.url)
                return _told(self._page(episode, view), valid=False)
            return await self._step(episode, action)

    @tool
    async def open_page(self, url: str) -> str:
        """Open a web page and read it: its text, with a number before everything that can be used.

        Args:
            url: Its address.
        """
        return await self._perform(Goto(url))

    @tool
    async def read_page(self, trainer: Annotated[dict[str, Any], Given(everything=True)] = {}) -> str:
        """Read the page once more, as it is now."""
        async with self._turn:
            return (await self._look(Episode.of(trainer).url)).told()

    @tool
    async def click(self, element: int) -> str:
        """Click a link, a button or anything else that has a number, and read what it leads to.

        Args:
            element: Its number.
        """
        return await self._perform(Click(element))

    @tool
    async def type_text(self, element: int, text: str, enter: bool = False) -> str:
        """Put text into a field, in place of what it holds, or choose an option of a list.

        Args:
            element: The number of the field.
            text: What to type, or the option.
            enter: Whether to press Enter after it.
        """
        return await self._perform(TypeText(element, text, enter))

    @tool
    async def scroll(self, direction: Literal["up", "down"]) -> str:
        """Go one screen up or down in a page that is longer than that.

        Args:
            direction: Where to.
        """
        return await self._perform(Scroll(direction))

    @tool
    async def go_back(self) -> str:
        """Return to the page before."""
        return await self._perform(GoBack())

    async def _perform(self, action: Action) -> str:
        async with self._turn:
            visit = await self._window()
            return (await visit.perform(action)).told()

    async def _step(self, episode: Episode, written: str) -> ToolOutput:
        """Perform one action of an episode in plain text, which ends on the model's `stop` or after its last step."""
        try:
            action = parse(written)
        except ValueError as error:
            return await self._after(episode, f"{INVALID}: {error}", valid=False)
        if isinstance(action, Stop):
            await self._leave()
            return ToolOutput(reward=episode.reward(action.answer), finished=True)
        if self._visit is None:  # the model knows the first page from its prompt
            await self._look(episode.url)
        try:
            view = await (await self._window()).perform(action)
        except ToolError as error:
            return await self._after(episode, f"{written}\nThat failed: {error}", valid=False)
        return await self._after(episode, written, view)

    async def _after(
        self, episode: Episode, said: str, view: PageView | None = None, *, valid: bool = True
    ) -> ToolOutput:
        self._steps += 1
        if self._steps >= episode.steps:
            await self._leave()
            return ToolOutput(finished=True, metadata=None if valid else {"valid": False})
        view = view or await self._look(episode.url)
        self._said = said
        return _told(self._page(episode, view), valid=valid)

    async def _look(self, url: str) -> PageView:
        """The current page; at first the task's start page."""
        if self._visit is not None:
            return await self._visit.perform(Look())
        visit = await self._window()
        url = url or BrowserSettings.read().start_page
        if not url:
            return await visit.perform(Look())
        try:
            return await visit.perform(Goto(url))
        except ToolError as error:
            view = await visit.perform(Look())
            return PageView(view.url, view.title, f"The first page could not be opened: {error}.")

    async def _window(self) -> Visit:
        if self._visit is None:
            self._visit = await open_visit()
        return self._visit

    async def _leave(self) -> None:
        visit, self._visit = self._visit, None
        self._steps, self._said = 0, "None"
        if visit is not None:
            await visit.close()

    def _page(self, episode: Episode, view: PageView) -> str:
        """The page in the frame that verl-tool's prompts describe."""
        return (
            f"Objective: {episode.question}\n\nURL: {view.url}\nObservation:\nTitle: {view.title}\n{view.body}\n"
            f"Parsed Previous Action:\n{self._said}\n"
        )


def _told(text: str, *, valid: bool) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], metadata=None if valid else {"valid": False})


def _plain(answer: str) -> str:
    """Normalise an answer: no case, outer quotes or superfluous space."""
    text = " ".join(answer.casefold().split())
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
