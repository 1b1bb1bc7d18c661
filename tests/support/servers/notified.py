"""Where Alertmanager delivers to, on loopback: a web server and a mail server that keep what they get."""

from __future__ import annotations

import email
import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from email.policy import default as email_policy
from typing import Any

from support.servers.loopback import Handler, serving, serving_http


@contextmanager
def web_server() -> Iterator[tuple[str, dict[str, Any]]]:
    """Takes what is posted; yields its URL, and the newest body of each path, and below `all PATH` all."""
    posted: dict[str, Any] = {}

    class Taking(Handler):
        def answer(self) -> None:
            posted[self.path] = body = json.loads(self.received())
            posted.setdefault(f"all {self.path}", []).append(body)
            self.reply(b"ok", 202 if self.path == "/pagerduty" else 200)

    with serving_http(Taking) as address:
        yield f"http://{address}", posted


@contextmanager
def mail_server() -> Iterator[tuple[str, list[Any]]]:
    """A mail server that takes all mails; yields its address and what it has got."""
    mails: list[Any] = []

    class Mail(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            for line in self.rfile:
                command = line[:4].upper()
                if command == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    mails.append(email.message_from_bytes(self._data(), policy=email_policy))
                self.wfile.write(b"221 bye\r\n" if command == b"QUIT" else b"250 test\r\n")
                if command == b"QUIT":
                    return

        def _data(self) -> bytes:
            lines = iter(self.rfile.readline, b".\r\n")
            return b"".join(each.removeprefix(b".") if each.startswith(b"..") else each for each in lines)

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail)) as address:
        yield address, mails
