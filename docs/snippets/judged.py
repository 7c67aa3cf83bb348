"""An environment whose reward is a judge's verdict, while the judge is down and when it is back."""

import json
import os
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

from toolyard import Client, Environment, ServiceUnavailable, ToolError, ToolOutput, tool
from toolyard.client import ToolCallFailed, ToolLost
from toolyard.testing import running


class Essay(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"topic": "the sea"}]

    def get_prompt(self):
        return f"Write an essay about {self.task_spec['topic']} and submit it."

    @tool
    def submit(self, essay: str) -> ToolOutput:
        """Hand in the essay. This ends the task.

        Args:
            essay: All of it.
        """
        if not essay.strip():
            raise ToolError("the essay is empty")  # the agent's mistake
        try:
            verdict = ask_judge(self.task_spec["topic"], essay)
        except urllib.error.URLError as error:
            raise ServiceUnavailable(f"the judge: {error}") from error  # nobody's mistake here: no reward, not even 0
        return ToolOutput(reward=verdict, finished=True)


def ask_judge(topic, essay):
    body = json.dumps({"topic": topic, "essay": essay}).encode()
    with urllib.request.urlopen(os.environ["JUDGE_URL"], body, timeout=30) as answer:
        return float(answer.read())


class Judge(BaseHTTPRequestHandler):
    """Stands for a model somewhere."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"1.0" if asked["topic"] in asked["essay"] else b"0.0")

    def log_message(self, *about):
        pass


def play(session, essay):
    try:
        print("reward", session.call_tool("submit", {"essay": essay}).reward)
    except ToolCallFailed as failed:
        print("the agent's:", failed.reason, "-", failed.message)
    except ToolLost as lost:
        print("nobody's:", lost.reason, "-", lost.message)


if __name__ == "__main__":
    os.environ["JUDGE_URL"] = "http://127.0.0.1:9"
    with (
        running([Essay]) as server,
        Client(server.url) as client,
        client.environments.get("essay").session(split="train", index=0) as session,
    ):
        play(session, " ")
        play(session, "I love the sea.")
        with HTTPServer(("127.0.0.1", 0), Judge) as judge:
            threading.Thread(target=judge.serve_forever).start()
            os.environ["JUDGE_URL"] = f"http://127.0.0.1:{judge.server_port}"
            play(session, "I love the sea.")
            judge.shutdown()
