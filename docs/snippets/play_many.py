import asyncio

from toolyard import AsyncClient


async def episode(environment, index):
    async with environment.session(split="train", index=index) as session:
        task = (await session.get_prompt())[0].text
        answer = sum(int(number) for number in task.split("?")[0].split() if number.isdigit())
        return (await session.call_tool("submit", {"answer": answer})).reward


async def main():
    async with AsyncClient("http://127.0.0.1:8080") as client:
        sums = client.environments.get("sums")
        rewards = await asyncio.gather(*(episode(sums, index) for index in range(32)))
        print(sum(rewards), "of", len(rewards))


asyncio.run(main())
