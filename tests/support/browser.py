"""A real browser without a window: what a page shows, and what it complains about."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DEADLINE_SECONDS = 120.0
_ASK = """addEventListener("load", async () => {
  const found = await (async () => {PROBE})();
  const answer = document.body.appendChild(document.createElement("pre"));
  answer.id = "answer";
  answer.textContent = JSON.stringify(found);
});"""


class Visit(NamedTuple):
    """A page that has been looked at."""

    answer: dict[str, Any]
    """What the probe has returned."""
    complaints: list[str]
    """Lines of the browser's console: errors of the script, and what the page's policy has stopped."""


def visit(page: str, probe: str, folder: Path, *, width: int = 1280, height: int = 900) -> Visit:
    """Open a page from the disk, without a network, and run a probe in it: the body of an async function."""
    code = _ASK.replace("PROBE", probe)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    page = page.replace("</body>", f"<script>{code}</script></body>")
    done = _opened(page, folder, f"--window-size={width},{height}", "--dump-dom")
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found is not None, done.stderr
    return Visit(
        json.loads(html.unescape(found[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    )


def photograph(page: str, picture: Path, folder: Path, *, width: int, height: int) -> None:
    """Write what a window with a page shows as a PNG."""
    _opened(page, folder, f"--window-size={width},{height}", "--hide-scrollbars", f"--screenshot={picture}")


def _opened(page: str, folder: Path, *what: str) -> subprocess.CompletedProcess[str]:
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", *what]
    command += [f"--user-data-dir={folder / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=5000", file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_SECONDS)
