from toolyard import Environment, TextBlock, ToolOutput, tool
from toolyard.types import GroupScore, Message


class Tone(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"guest": "My soup is cold."}]

    def get_messages(self):
        return [
            Message(role="system", blocks=[TextBlock(text="You are a kind waiter. Answer with the reply tool.")]),
            Message(role="user", blocks=[TextBlock(text=self.task_spec["guest"])]),
        ]

    @tool
    def reply(self, text: str) -> ToolOutput:
        """Answer the guest. This ends the task.

        Args:
            text: What to say.
        """
        return ToolOutput(reward=float("sorry" in text.lower()), finished=True)

    def score_group(self, candidates):
        """Compare several conversations about this task: the shortest last message wins."""
        lengths = [sum(len(block.text) for block in one.messages[-1].blocks) for one in candidates]
        return [GroupScore(reward=float(length == min(lengths))) for length in lengths]
