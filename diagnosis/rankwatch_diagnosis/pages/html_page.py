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

from rankwatch import __version__
from rankwatch.untrusted.text import printable


def part_of(package: str, name: str) -> str:
    """Return a file that lies in a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def style_of(package: str = "", name: str = "") -> str:
    """Return the style of all pages, and after it that of one page, if it has its own."""
    return _own("page.css") + (part_of(package, name) if name else "")


def page(name: str, filters: Mapping[str, Callable[..., object]] | None = None, **values: object) -> str:
    """Render the page of that name, which extends `page.html`, with its own style.

    values: `source`, and what the page itself shows.
    """
    style = _own("page.css") + _own(f"{name}.css")
    shown = {"policy": policy(style), "style": Markup(style), "version": __version__, **values}
    return template(_own(f"{name}.html"), filters or {}).render(shown)


def template(text: str, filters: Mapping[str, Callable[..., object]]) -> jinja2.Template:
    """Return a template that escapes all values and may extend `page.html`; a name not given is an error."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        loader=jinja2.FunctionLoader(_own),
    )
    environment.filters.update({"printable": printable, **filters})
    return environment.from_string(text)


def _own(name: str) -> str:
    return part_of("rankwatch_diagnosis.pages", name)


def policy(style: str, script: str = "") -> Markup:
    """Return the content security policy of a page with this style and script."""
    allowed = f"default-src 'none'; style-src '{_hash(style)}'"
    return Markup(allowed + (f"; script-src '{_hash(script)}'" if script else ""))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
