from toolyard import Environment, ToolOutput, terminal, tool


class Riddle(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"riddle": "What has hands and cannot clap?", "answer": "clock"}]

    def get_prompt(self):
        return self.task_spec["riddle"]

    @tool
    def hint(self) -> str:
        """Get a hint."""
        return f"It has {len(self.task_spec['answer'])} letters."

    @tool
    @terminal
    def grade(self, message: str) -> ToolOutput:
        """Takes the agent's last message. Models do not see this tool."""
        return ToolOutput(reward=float(self.task_spec["answer"] in message.lower()), finished=True)
