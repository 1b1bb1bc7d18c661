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


def page(
    name: str,
    filters: Mapping[str, Callable[..., object]] | None = None,
    *,
    script: str = "",
    **values: object,
) -> str:
    """Render the page of that name, which extends `page.html`, with its own style.

    script: name of the file of its script. values: what the page shows.
    """
    style, code = _own("page.css") + _own(f"{name}.css"), _own(script)
    shown = {"policy": _policy(style, code), "style": Markup(style), "script": Markup(code), **values}
    return _template(_own(f"{name}.html"), filters or {}).render({"version": __version__, **shown})


def _template(text: str, filters: Mapping[str, Callable[..., object]]) -> jinja2.Template:
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
    """Return a file of this folder; empty without a name, or where a page has no style of its own."""
    file = resources.files("rankwatch_diagnosis.pages").joinpath(name)
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _policy(style: str, script: str) -> Markup:
    """Return the content security policy of a page with this style and script."""
    allowed = f"default-src 'none'; style-src '{_hash(style)}'"
    return Markup(allowed + (f"; script-src '{_hash(script)}'" if script else ""))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
