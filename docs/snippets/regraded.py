from toolyard import Environment, ToolOutput, tool


class Riddle(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"riddle": "It has keys and opens no door.", "answer": "piano"}]

    def get_prompt(self):
        return self.task_spec["riddle"]

    @tool
    async def hint(self) -> str:
        """Ask for a hint."""
        return f"It has {len(self.task_spec['answer'])} letters."

    @tool
    async def answer(self, word: str) -> ToolOutput:
        """Say what it is. This ends the task.

        Args:
            word: One word.
        """
        return ToolOutput(reward=float(word == self.task_spec["answer"]), finished=True)

    @classmethod
    def score(cls, episode):
        """What `toolyard rescore` gives an episode that was recorded: a number, or several with names."""
        *before, last = episode["steps"]
        said = last["arguments"].get("word", "").strip().lower()
        return {"correct": float(said == episode["task"]["answer"]), "hints": float(len(before))}

    @staticmethod
    def redact(step):
        """What is kept of a call: here no word that the model wrote beside it."""
        return {**step, "said": None}
