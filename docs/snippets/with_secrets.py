from toolyard import Environment, ToolError, ToolOutput, tool


class Weather(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"city": "Port Alder"}]

    def get_prompt(self):
        return f"What is the weather in {self.task_spec['city']}?"

    @tool
    def ask_service(self) -> str:
        """Ask the weather service."""
        if self.secrets.get("WEATHER_KEY") is None:
            raise ToolError("the weather service needs the secret WEATHER_KEY")
        return "rain"

    @tool
    def submit(self, weather: str) -> ToolOutput:
        """Hand in the answer. This ends the task.

        Args:
            weather: One word.
        """
        return ToolOutput(reward=float(weather == "rain"), finished=True)
