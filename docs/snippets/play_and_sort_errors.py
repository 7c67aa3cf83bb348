from toolyard import Client
from toolyard.client import InfrastructureError, ToolCallFailed


def play(client, index, calls):
    """The rewards of an episode, or None if it says nothing about the agent."""
    rewards = []
    try:
        with client.environments.get("sums").session(split="train", index=index) as session:
            for name, arguments in calls:
                try:
                    output = session.call_tool(name, arguments)
                except ToolCallFailed as failed:
                    print("for the model to read:", failed.reason)
                    continue
                rewards.append(output.reward)
    except InfrastructureError as trouble:
        print("leave this episode out:", trouble)
        return None
    return rewards


with Client("http://127.0.0.1:8080") as client:
    print(play(client, 3, [("guess", {}), ("submit", {"answer": "seven"}), ("submit", {"answer": 7})]))
    print(client.environments.get("sums").list_tools(format="anthropic")[0]["name"])
