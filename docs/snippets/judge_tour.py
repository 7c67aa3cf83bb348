"""An environment whose essays a model judges by a rubric, with a scripted model in the place of a real one."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from toolyard import Client, Environment, ToolOutput, tool
from toolyard.client import ToolLost
from toolyard.judge import Criterion, Judge
from toolyard.testing import running

JUDGE = Judge(
    "a-model",
    [
        Criterion("correct", "Is what it says of the topic true?"),
        Criterion("style", "How well is it written? 5 is a pleasure to read.", scale=(1, 5), weight=0.5),
    ],
    instructions="The texts are essays of a few lines.",
    deadline=60,
    tries=2,
)


class Essays(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"topic": "the sea"}]

    def get_prompt(self):
        return f"Write a short essay about {self.task_spec['topic']} and submit it."

    @tool
    async def submit(self, essay: str) -> ToolOutput:
        """Hand in the essay. This ends the task.

        Args:
            essay: All of it.
        """
        verdict = await JUDGE.ask(essay, about={"topic": self.task_spec["topic"]})
        return ToolOutput(
            rewards=verdict.rewards,
            weights=JUDGE.weights,
            metadata={"reasons": verdict.reasons},
            finished=True,
        )


class Model(BaseHTTPRequestHandler):
    """Stands for a model somewhere."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        mark = asked["messages"][1]["content"].split()[3]
        scores = {"correct": {"reason": "It is wet.", "score": 1}, "style": {"reason": "Short.", "score": 3}}
        content = json.dumps({"mark": mark, "scores": scores})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"choices": [{"message": {"content": content}}]}).encode())

    def log_message(self, *about):
        pass


def play(essay):
    with (
        running([Essays]) as server,
        Client(server.url) as client,
        client.environments.get("essays").session(split="train", index=0) as session,
    ):
        output = session.call_tool("submit", {"essay": essay})
        print(output.reward, output.rewards, output.metadata["reasons"])


if __name__ == "__main__":
    os.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:9/v1"
    try:
        play("The sea is wet.")
    except ToolLost as lost:
        print("nobody's:", lost.reason)
    with HTTPServer(("127.0.0.1", 0), Model) as model:
        threading.Thread(target=model.serve_forever).start()
        os.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{model.server_port}/v1"
        play("The sea is wet.")
        model.shutdown()
    play("The sea is wet.")  # nobody is asked: the verdict is known
