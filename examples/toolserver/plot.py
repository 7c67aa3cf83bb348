"""What an agent does through the ToolServer's wire: write a file, plot it in a notebook, take the picture home.

    python examples/toolserver/plot.py --png plot.png

It starts a server itself, or uses the `--url` of one that serves the workspace. A real agent lets a model decide what
comes next; here the steps are fixed.
"""

import argparse
import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from toolyard.loading import WORKSPACE, load_targets
from toolyard.testing import running

MEASURED = """month,Lima,Oslo
1,23.0,-2.9
2,23.6,-2.1
3,23.2,1.4
4,21.4,6.5
5,19.3,12.1
6,17.8,16.0
7,17.1,18.1
8,16.7,17.0
9,16.8,12.6
10,17.7,7.2
11,19.1,2.0
12,21.1,-2.0
"""

PLOT = """
import csv
import matplotlib.pyplot as plt

with open("temperatures.csv") as file:
    rows = list(csv.DictReader(file))

figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for city in ("Lima", "Oslo"):
    axes.plot([int(row["month"]) for row in rows], [float(row[city]) for row in rows], marker="o", label=city)
axes.set(xlabel="month", ylabel="mean temperature (°C)", xticks=range(1, 13))
axes.grid(alpha=0.3)
axes.legend()
figure.savefig("temperatures.png")
"""


class Agent:
    """An agent with its own node, and its few requests."""

    def __init__(self, url: str) -> None:
        self.http = httpx2.Client(base_url=url, timeout=120, trust_env=False)
        self.http.post("/get_cookie").raise_for_status()  # the client keeps the cookie that names the node

    def use(self, tool: str, **arguments: Any) -> Any:
        """Call a tool; if it is not ready, ask again with the call that it names."""
        answer = self.http.post("/execute_tool", json={"tool_name": tool, "arguments": arguments})
        while answer.status_code == 450:
            time.sleep(0.1)
            retry = answer.json()["detail"]
            body = {"tool_name": retry["next_calling"], "arguments": retry["arguments"]}
            answer = self.http.post("/execute_tool", json=body)
        answer.raise_for_status()
        return answer.json()

    def download(self, path: str) -> bytes:
        return self.http.post("/download_file", json={"file_path": path}).raise_for_status().content

    def leave(self) -> None:
        self.http.post("/release_session")
        self.http.close()


@contextmanager
def served(url: str) -> Iterator[str]:
    if url:
        yield url
        return
    with running(load_targets([WORKSPACE]).environments) as server:
        yield server.url


def pictures(result: Any) -> Iterator[bytes]:
    """The binary parts of a result, however deep."""
    if isinstance(result, dict) and result.get("type") == "composite":
        for part in result["data"]:
            yield from pictures(part)
    elif isinstance(result, dict) and result.get("type") == "binary":
        yield base64.b64decode(result["data"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="of a server; without it, one is started")
    parser.add_argument("--png", type=Path, default=Path("temperatures.png"), help="where to put the picture")
    args = parser.parse_args()
    with served(args.url) as url:
        agent = Agent(url)
        agent.use("FileSystemEnv_write_to_file", filepath="temperatures.csv", content=MEASURED)
        shown = agent.use("PythonNotebook_execute_cell", code=PLOT)
        print(f"the notebook showed {len(list(pictures(shown)))} picture")
        print(agent.use("shell_command_executor", command="ls -1 --sort=size")["data"]["display"].strip())
        args.png.write_bytes(agent.download("temperatures.png"))
        print(f"saved as {args.png}")
        agent.leave()


if __name__ == "__main__":
    main()
