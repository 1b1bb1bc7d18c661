"""What all pages share: one file that needs no network, and escapes every text.

The policy of a page allows its own style and its own script, by their hashes, and nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib import resources

import jinja2
from markupsafe import Markup


def part_of(package: str, name: str) -> str:
    """A file that lies in a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def style_of(package: str = "", name: str = "") -> str:
    """The style of all pages, and after it that of one page, if it has its own."""
    return part_of("rankwatch_diagnosis.pages", "page.css") + (part_of(package, name) if name else "")


def template(text: str, filters: Mapping[str, Callable[..., object]]) -> jinja2.Template:
    """A template that escapes all values; a name that is not given is an error."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters.update(filters)
    return environment.from_string(text)


def policy(style: str, script: str = "") -> Markup:
    """The content security policy of a page with this style and script."""
    allowed = f"default-src 'none'; style-src '{_hash(style)}'"
    return Markup(allowed + (f"; script-src '{_hash(script)}'" if script else ""))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
