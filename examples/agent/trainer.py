"""A trainer that lets an agent play in a separate process, which gets only a URL.

    python examples/agent/trainer.py
    python examples/agent/trainer.py mcp_agent.py    # the agent that uses the `mcp` package

The server listens on two ports: on one for the trainer, which has the key, and on one for agents. The agent's process
sees no task, no reward and no other session. When it has ended, the trainer asks for the outcome of its session.
"""

import os
import subprocess
import sys
from pathlib import Path

from toolyard import Client
from toolyard.client import Session
from toolyard.loading import load_targets
from toolyard.testing import running

HERE = Path(__file__).parent
AGENT = sys.argv[1] if len(sys.argv) > 1 else "agent.py"
KEY = "only the trainer knows this"


def play(session: Session) -> float | None:
    """Let an agent play a session to its end; returns its return."""
    environment = {"AGENT_URL": session.agent_url(expires_in=600).url, "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, HERE / AGENT], env=environment, check=True)
    outcome = session.outcome()
    print(f"trainer: reward {outcome.reward}, finished {outcome.finished}, {outcome.calls} calls", flush=True)
    return outcome.total


def main() -> None:
    environments = load_targets([str(HERE.parent / "arithmetic.py")]).environments
    with running(environments, api_key=KEY, agent_port=0) as server, Client(server.url, api_key=KEY) as client:
        arithmetic = client.environments.get("arithmetic")
        for index in (0, 1):
            with arithmetic.session(split="train", index=index) as session:
                play(session)


if __name__ == "__main__":
    main()
