from typing import Annotated, Literal

from pydantic import BaseModel, Field

from toolyard import Environment, ToolOutput, tool


class Order(BaseModel):
    dish: Literal["soup", "salad", "cake"] = Field(description="What to eat.")
    count: int = Field(default=1, ge=1, le=10, description="How many of it.")


class Kitchen(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"dish": "soup"}, {"dish": "cake"}]

    def get_prompt(self):
        return f"Order a {self.task_spec['dish']}."

    # Plain typed parameters. Their descriptions come from the docstring.
    @tool
    def season(self, spice: Literal["salt", "pepper"], spoons: float = 0.5) -> str:
        """Season the next order.

        Args:
            spice: What to add.
            spoons: How much of it.
        """
        return f"{spoons:g} spoons of {spice}"

    # The same with what pydantic knows about limits.
    @tool
    def wait(self, minutes: Annotated[int, Field(ge=1, le=60, description="How long.")]) -> str:
        """Wait for a while."""
        return f"{minutes} minutes later"

    # One pydantic model, as in ORS.
    @tool
    async def order(self, params: Order) -> ToolOutput:
        """Order a dish. This ends the task."""
        return ToolOutput(reward=float(params.dish == self.task_spec["dish"]), finished=True)
