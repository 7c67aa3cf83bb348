import asyncio

from toolyard import AsyncClient
from toolyard.agents import Seat, groups, rollouts
from toolyard.client import Task


async def adds(session: Seat, task: Task) -> None:
    """An agent: a coroutine that is handed a session and its task."""
    question = (await session.get_prompt())[0].text
    answer = sum(int(word) for word in question.split("?")[0].split() if word.isdigit())
    await session.call_tool("submit", {"answer": answer})


async def main():
    async with AsyncClient("http://127.0.0.1:8080") as client:
        sums = client.environment("sums")
        tasks = await sums.get_task_range("train", 0, 8)
        returns = [rollout.total async for rollout in rollouts(sums.session, tasks, adds)]
        print(sum(returns), "of", len(returns))

        async for group in groups(sums.session, tasks[:1], adds, n=4):
            print([rollout.total for rollout in group])


asyncio.run(main())
