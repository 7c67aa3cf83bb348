"""Play one headline and see what it is worth, part by part."""

from toolyard import Client

with (
    Client("http://127.0.0.1:8080") as client,
    client.environments.get("headlines").session(split="train", index=0) as session,
):
    output = session.call_tool("submit", {"headline": "Lima's harbour freezes"})
    print(output.reward, output.rewards)
