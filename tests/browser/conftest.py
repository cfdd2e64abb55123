"""A real Chromium, driven by Playwright, and a real dashboard process."""

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

ROOT = Path(__file__).parents[2]
ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Witness:
    """What a page asked for and complained of.

    Attributes:
        requests: addresses asked for.
        complaints: console errors and uncaught exceptions.
    """

    requests: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])

    def watch(self, page: Page) -> None:
        """Listen to a page from now on."""

        def heard(message: ConsoleMessage) -> None:
            if message.type == "error":
                self.complaints.append(message.text)

        def asked(request: Request) -> None:
            self.requests.append(request.url)

        page.on("console", heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", asked)


class Serve(Protocol):
    """Starts a dashboard on a store and gives its address."""

    def __call__(self, store: Path) -> AbstractContextManager[str]: ...


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return Debian's Chromium."""
    executable = shutil.which("chromium")
    assert executable, "no chromium: `make test` installs it (apt-get install chromium)"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=[*ARGUMENTS])
        yield chromium
        chromium.close()


@pytest.fixture
def witness() -> Witness:
    """Return a listener that has heard nothing yet."""
    return Witness()


@pytest.fixture
def page(browser: Browser, witness: Witness) -> Iterator[Page]:
    """Return a page of its own, listened to."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    opened = context.new_page()
    witness.watch(opened)
    yield opened
    context.close()


@pytest.fixture
def serve() -> Serve:
    """Return a function that runs the dashboard as its users do."""

    @contextmanager
    def run(store: Path) -> Generator[str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "dashboards" / "app.py")]
        options = ["--server.port", str(port), "--", "--store", str(store)]
        process = subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            heard: list[str] = []
            for line in process.stdout:  # ends when the process does
                heard.append(line)
                if found := re.search(r"URL: (\S+)", line):
                    yield found.group(1)
                    break
            else:
                raise AssertionError("the dashboard did not start:\n" + "".join(heard))
        finally:
            process.terminate()
            process.communicate(timeout=30)

    return run
