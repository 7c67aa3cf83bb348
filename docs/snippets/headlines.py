"""An environment whose reward has parts with names, whose episodes are short, and one of whose tools is in a hurry."""

from toolyard import Environment, TextBlock, ToolOutput, tool

WEIGHTS = {"short": 0.5}


class Headlines(Environment):
    max_turns = 8

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"story": "The harbour of Lima froze over on Monday.", "about": ["harbour", "lima"]}]

    def get_prompt(self):
        return "Read the story, then submit a headline that names what it is about. You have eight calls."

    @tool(timeout=20)
    async def read_story(self) -> str:
        """Read the story."""
        return self.task_spec["story"]

    @tool
    def submit(self, headline: str) -> ToolOutput:
        """Hand in the headline. This ends the task.

        Args:
            headline: One line.
        """
        named = all(word in headline.lower() for word in self.task_spec["about"])
        rewards = {"correct": float(named), "short": float(named and len(headline) <= 40)}
        return ToolOutput(blocks=[TextBlock(text="Thank you.")], rewards=rewards, weights=WEIGHTS, finished=True)
