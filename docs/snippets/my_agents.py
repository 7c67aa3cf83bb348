from toolyard.agents import Seat
from toolyard.client import Task


async def patient(session: Seat, task: Task) -> None:
    """Read the question, and hand in the number that comes first."""
    question = (await session.get_prompt())[0].text
    number = next(word for word in question.split() if word.isdigit())
    await session.call_tool("submit", {"answer": number})
