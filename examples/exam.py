"""An exam in which the tools depend on the task: multiple choice, open book and closed book.

Shows: `list_task_tools()`, which describes tools that only the current task has, and `call_task_tool()`, which runs
them. Everybody sees `submit_answer`; a multiple-choice question adds `select_option`, an open-book question `search`.

    toolyard serve examples/exam.py
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolyard import Environment, ListToolsOutput, TextBlock, ToolError, ToolOutput, ToolSpec, tool

NOTES = {
    "Harbour": "The harbour of Port Alder freezes from December to March. Ships then unload at Stone Quay.",
    "Lighthouse": "The lighthouse on Gull Point was built in 1871 by Ada Brandt. Its lamp can be seen for 31 km.",
    "Ferry": "The ferry Kittiwake crosses to Port Alder twice a day. It carries 12 cars and 140 people.",
    "Museum": "The museum in the old cannery keeps 4,300 photographs. It is closed on Tuesdays.",
}

QUESTIONS: list[dict[str, Any]] = [
    {
        "type": "multiple_choice",
        "question": "Which of these gases is the largest part of the air?",
        "options": ["oxygen", "nitrogen", "carbon dioxide", "argon"],
        "answer": "B",
    },
    {
        "type": "multiple_choice",
        "question": "Which of these numbers is prime?",
        "options": ["51", "57", "59"],
        "answer": "C",
    },
    {"type": "open_book", "question": "Who built the lighthouse on Gull Point?", "answer": "Ada Brandt"},
    {"type": "open_book", "question": "On which day of the week is the museum closed?", "answer": "Tuesday"},
    {"type": "closed_book", "question": "How many sides does a hexagon have? Answer with a digit.", "answer": "6"},
]

HOW_TO = {
    "multiple_choice": "Choose with select_option.",
    "open_book": "The search tool looks through the notes. Then call submit_answer.",
    "closed_book": "Answer from memory with submit_answer.",
}


class Exam(Environment):
    """Questions that come with different tools."""

    replayable = True  # the same calls lead to the same state, so a session can be forked or made again

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return QUESTIONS

    def get_prompt(self) -> str:
        lines = [self.task_spec["question"]]
        lines += [f"{letter}. {option}" for letter, option in self.options().items()]
        return "\n".join([*lines, "", HOW_TO[self.task_spec["type"]]])

    @tool
    def submit_answer(self, answer: str) -> ToolOutput:
        """Hand in the answer in words. This ends the task.

        Args:
            answer: A word or two, without an explanation.
        """
        return self.grade(answer)

    def list_task_tools(self) -> ListToolsOutput:
        match self.task_spec["type"]:
            case "multiple_choice":
                return ListToolsOutput(tools=[self.select_option_spec()])
            case "open_book":
                return ListToolsOutput(tools=[SEARCH])
            case _:
                return ListToolsOutput(tools=[])

    def call_task_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput | str:
        match name:
            case "select_option":
                return self.grade(arguments["option"])
            case "search":
                return search(arguments["query"])
            case _:
                raise ToolError(f"there is no {name} in this task")

    def options(self) -> dict[str, str]:
        return dict(zip("ABCD", self.task_spec.get("options", []), strict=False))

    def select_option_spec(self) -> ToolSpec:
        option = {"type": "string", "enum": list(self.options()), "description": "The letter of the option."}
        return ToolSpec(
            name="select_option",
            description="Choose one of the options. This ends the task.",
            input_schema={"type": "object", "properties": {"option": option}, "required": ["option"]},
        )

    def grade(self, answer: str) -> ToolOutput:
        correct = words(answer) == words(self.task_spec["answer"])
        verdict = "Correct." if correct else f"Wrong: the answer is {self.task_spec['answer']}."
        return ToolOutput(blocks=[TextBlock(text=verdict)], reward=float(correct), finished=True)


SEARCH = ToolSpec(
    name="search",
    description="Find notes by the words in them.",
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string", "description": "A few words that the note should have."}},
        "required": ["query"],
    },
)


def search(query: str) -> str:
    """The notes that share most words with the query, best first."""
    wanted = set(words(query))
    shared = {title: len(wanted & set(words(f"{title} {text}"))) for title, text in NOTES.items()}
    best = sorted((title for title in NOTES if shared[title]), key=lambda title: -shared[title])
    return "\n".join(f"{title}: {NOTES[title]}" for title in best[:2]) or "No note has any of these words."


def words(text: str) -> list[str]:
    """Lower-case words, without a plural s: 'on Tuesdays.' is ['on', 'tuesday']."""
    return [word if len(word) < 4 else word.removesuffix("s") for word in re.findall(r"\w+", text.lower())]
