"""Chromium on this host: where it is, how to start it, and the directory that it lives in."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from toolyard.browser.addresses import Addresses

log = logging.getLogger("toolyard.browser")

LAUNCHER = str(Path(__file__).with_name("launcher.py"))

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_DEBIAN = "/usr/lib/chromium/chromium"
"""The program that Debian's script `chromium` starts."""
_SUID_HELPER = "chrome-sandbox"
_USERS, _FIRST_USER = 4336, 61184
"""Free user ids, from the range that systemd gives to services for a while."""
_GONE_SECONDS = 15

_FEATURES_OFF = (
    "HttpsUpgrades",
    "MediaRouter",
    "OptimizationHints",
    "PaintHolding",
    "Translate",
    "DestroyProfileOnBrowserClose",
)

_SWITCHES = (
    *("--headless", "--hide-scrollbars", "--mute-audio", "--disable-gpu", "--force-color-profile=srgb"),
    *("--no-first-run", "--no-default-browser-check", "--no-startup-window", "--remote-debugging-pipe"),
    # No requests of its own.
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync"),
    *("--disable-domain-reliability", "--disable-client-side-phishing-detection", "--metrics-recording-only"),
    *("--disable-field-trial-config", "--disable-search-engine-choice-screen", "--no-pings", "--no-service-autorun"),
    *("--disable-extensions", "--disable-component-extensions-with-background-pages", "--disable-print-preview"),
    *("--disable-breakpad", "--disable-crash-reporter", "--noerrdialogs"),
    *("--password-store=basic", "--use-mock-keychain", "--disable-dev-shm-usage"),
    # Background pages run as fast as the one in front.
    *("--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows"),
    *("--disable-renderer-backgrounding", "--disable-hang-monitor", "--disable-back-forward-cache"),
    *("--disable-ipc-flooding-protection", "--disable-prompt-on-repost", "--allow-pre-commit-input"),
    # All traffic goes through the gate.
    *("--disable-quic", "--force-webrtc-ip-handling-policy=disable_non_proxied_udp"),
    *("--webrtc-ip-handling-policy=disable_non_proxied_udp", "--proxy-bypass-list=<-loopback>"),
    f"--disable-features={','.join(_FEATURES_OFF)}",
    "--js-flags=--max-old-space-size=512",
)


@dataclass(frozen=True, slots=True)
class BrowserSettings:
    """Read from environment variables, since only the tools that browse use it."""

    chromium: str
    addresses: Addresses = field(default_factory=Addresses)
    windows: int = 128
    """How many windows may be open at once, one for each session."""
    answer_seconds: float = 15
    """How long to wait for the answer of a page's server."""
    start_page: str = ""
    """The first page of a session whose task names none."""

    @classmethod
    def read(cls) -> Self:
        """Raises ValueError for a malformed variable."""
        return cls(
            chromium=find_chromium() or "",
            addresses=Addresses.parse(os.environ.get("TOOLYARD_BROWSER_ALLOW", "")),
            windows=int(os.environ.get("TOOLYARD_BROWSER_SESSIONS", "128")),
            answer_seconds=float(os.environ.get("TOOLYARD_BROWSER_SECONDS", "15")),
            start_page=os.environ.get("TOOLYARD_BROWSER_START", ""),
        )


def find_chromium() -> str | None:
    named = os.environ.get("TOOLYARD_BROWSER_CHROMIUM")
    if named:
        return shutil.which(named)
    found = shutil.which(_DEBIAN) if shutil.which("chromium") else None
    return found or next((path for path in map(shutil.which, _PROGRAMS) if path), None)


def wrong_settings() -> str:
    """What is wrong with the variables; empty if nothing is."""
    try:
        BrowserSettings.read()
    except ValueError as error:
        return f"a TOOLYARD_BROWSER_ variable cannot be used: {error}"
    return ""


def missing() -> str:
    """What a browser lacks here; empty if nothing."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install 'toolyard[browser]'"
    if problem := wrong_settings():
        return problem
    if find_chromium() is None:
        named = os.environ.get("TOOLYARD_BROWSER_CHROMIUM")
        where = f"TOOLYARD_BROWSER_CHROMIUM is {named!r}, which cannot be run" if named else "there is no Chromium here"
        return f"{where}; on Debian: apt install chromium"
    return ""


class Home:
    """A directory for one run of Chromium, owned by the user that it runs as. It goes away when Chromium does."""

    def __init__(self) -> None:
        self.user = _FIRST_USER + os.getpid() % _USERS if os.geteuid() == 0 else os.geteuid()
        self.path = Path(tempfile.mkdtemp(prefix="toolyard-browser-"))
        os.mkfifo(self.path / "lifeline", 0o600)
        self.artifacts.mkdir()
        for path in (self.path, self.path / "lifeline", self.artifacts):
            os.chown(path, self.user, -1)
        self._lifeline: int | None = os.open(self.path / "lifeline", os.O_RDWR | os.O_CLOEXEC)

    @property
    def artifacts(self) -> Path:
        """The driver's files, in a place that the launcher can clean up."""
        return self.path / "artifacts"

    async def can_sandbox(self, chromium: str) -> bool:
        """Whether Chromium's own sandbox works for the user that it runs as."""
        probe = await asyncio.create_subprocess_exec(
            sys.executable, "-I", LAUNCHER, "probe", str(self.user), stderr=asyncio.subprocess.DEVNULL
        )
        return await probe.wait() == 0 or Path(chromium).with_name(_SUID_HELPER).exists()

    def command(self, chromium: str, *, proxy: int, sandboxed: bool) -> Sequence[str]:
        """The arguments with which this Python starts it."""
        return [
            *("-I", LAUNCHER, "run", str(self.path), str(self.user), chromium, *_SWITCHES),
            f"--proxy-server=socks5://127.0.0.1:{proxy}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={self.path / 'profile'}",
            *(["--no-sandbox"] if not sandboxed else []),
        ]

    def environment(self) -> dict[str, str | float | bool]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ", "FONTCONFIG_PATH") if name in os.environ}
        return {**kept, "HOME": str(self.path), "TMPDIR": str(self.path)}

    async def close(self) -> None:
        """End Chromium if it still runs, and remove everything."""
        if self._lifeline is None:
            return
        os.close(self._lifeline)
        self._lifeline = None
        for _ in range(_GONE_SECONDS * 100):
            if not (self.path / "profile").exists():  # the launcher has removed it, or never started
                break
            await asyncio.sleep(0.01)
        shutil.rmtree(self.path, ignore_errors=True)
