"""XAgent's ToolServer client, re-created from its requests and from how it reads the answers.

Runs where only `requests` is installed; imports nothing of Toolyard.
"""

from __future__ import annotations

import base64
import os
import time
import uuid
from enum import Enum
from pathlib import Path
from typing import Any

import requests


class Status(Enum):
    TOOL_CALL_SUCCESS = 200
    HALLUCINATE_NAME = 404
    FORMAT_ERROR = 422
    TIMEOUT_ERROR = 450
    TOOL_CALL_FAILED = 500
    OTHER_ERROR = 0


class ServerError(Exception):
    """503: the client gives up the whole run."""


class XAgentClient:
    pause = 3.0
    """Seconds before a retry; ten retries at most."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.cookies: Any = None

    def lazy_init(self) -> None:
        response = requests.post(f"{self.url}/get_cookie")  # it ignores the status
        self.cookies = response.cookies

    def close(self) -> None:
        requests.post(f"{self.url}/close_session", cookies=self.cookies)

    def upload_file(self, path: Path) -> Any:
        with path.open("rb") as file:
            parts = {"file": file, "filename": os.path.basename(path)}
            response = requests.post(f"{self.url}/upload_file", timeout=10, cookies=self.cookies, files=parts)
        response.raise_for_status()
        return response.json()

    def download_file(self, file_path: str) -> Path:
        response = requests.post(
            f"{self.url}/download_file", cookies=self.cookies, timeout=10, json={"file_path": file_path}
        )
        response.raise_for_status()
        target = self.folder / file_path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(response.content)
        return target

    def download_all_files(self) -> Path:
        response = requests.post(f"{self.url}/download_workspace", cookies=self.cookies)
        response.raise_for_status()
        target = self.folder / "workspace.zip"
        target.write_bytes(response.content)
        return target

    def get_workspace_structure(self) -> Any:
        response = requests.post(f"{self.url}/get_workspace_structure", cookies=self.cookies, timeout=10)
        response.raise_for_status()
        return response.json()

    def get_available_tools(self, unwanted: tuple[str, ...] = ()) -> tuple[list[str], list[dict[str, Any]]]:
        response = requests.post(f"{self.url}/get_available_tools", timeout=10, cookies=self.cookies, json={})
        response.raise_for_status()
        answer = response.json()
        names: list[str] = answer["available_tools"]
        for name in unwanted:
            names.remove(name)
        schemas = [schema for schema in answer["tools_json"] if schema["name"] not in unwanted]
        return names, schemas

    def retrieve_tools(self, question: str, top_k: int = 10) -> tuple[Any, Any]:
        response = requests.post(
            f"{self.url}/retrieving_tools",
            timeout=20,
            cookies=self.cookies,
            json={"question": question, "top_k": top_k},
        )
        try:
            answer = response.json()
            return answer["retrieved_tools"], answer["tools_json"]
        except (ValueError, KeyError):
            return None, None

    def get_schemas(self, names: list[str]) -> Any:
        return requests.post(
            f"{self.url}/get_json_schema_for_tools", timeout=10, cookies=self.cookies, json={"tool_names": names}
        ).json()

    def execute_command_client(self, name: str, arguments: dict[str, Any]) -> tuple[Status, Any]:
        status, answer = self._execute(name, arguments)
        for _ in range(10):
            if status is not Status.TIMEOUT_ERROR or answer["detail"].get("type") != "retry":
                return status, answer
            time.sleep(self.pause)
            status, answer = self._execute(answer["detail"]["next_calling"], answer["detail"]["arguments"])
        if status is Status.TIMEOUT_ERROR:
            answer = "Timeout and no content returned! Please check the content you submit!"
        return status, answer

    def _execute(self, name: str, arguments: dict[str, Any]) -> tuple[Status, Any]:
        payload = {"tool_name": name, "arguments": arguments}
        response = requests.post(f"{self.url}/execute_tool", cookies=self.cookies, json=payload)
        if response.status_code == 503:
            raise ServerError(response.text)
        known = {status.value for status in Status}
        status = Status(response.status_code) if response.status_code in known else Status.OTHER_ERROR
        if status is Status.TOOL_CALL_SUCCESS:
            return status, self.unwrap(response.json())
        return status, response.json() if status is Status.TIMEOUT_ERROR else response.text

    def unwrap(self, answer: Any) -> Any:
        if not isinstance(answer, dict):
            return answer
        match answer["type"]:
            case "simple":
                return answer["data"]
            case "composite":
                return [self.unwrap(part) for part in answer["data"]]
            case "binary":
                return self._save(answer)
        raise ValueError(f"unknown type {answer['type']}")

    def _save(self, answer: dict[str, Any]) -> dict[str, str]:
        name = answer.get("name", uuid.uuid4().hex)
        if answer["media_type"] == "image/png" and not name.endswith(".png"):
            name += ".png"  # a null name fails here
        (self.folder / name).write_bytes(base64.b64decode(answer["data"]))
        return {"media_type": answer["media_type"], "file_name": name}
