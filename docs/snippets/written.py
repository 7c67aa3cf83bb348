from typing import Annotated

from toolyard import Environment, Given, Tagged, ToolOutput, tool


class Capitals(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"country": "France", "capital": "Paris"}, {"country": "Peru", "capital": "Lima"}]

    def get_prompt(self):
        return f"What is the capital of {self.task_spec['country']}? Look it up, then answer."

    @tool(form=Tagged("lookup", "name", before="\n<information>", after="</information>\n"))
    async def look_up(self, name: str) -> str:
        """Look a country up.

        Args:
            name: Of the country.
        """
        return {"France": "Its capital is Paris.", "Peru": "Its capital is Lima."}.get(name, "Nothing is known.")

    @tool
    async def answer(self, city: str, capital: Annotated[str, Given()] = "") -> ToolOutput:
        """Answer the question. This ends the task.

        Args:
            city: The capital.
        """
        return ToolOutput(reward=float(city.strip() == capital), finished=True)
