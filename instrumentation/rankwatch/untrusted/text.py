"""Texts that others have written: what may be shown of them, and what must not be kept.

Exceptions, paths and names come from programs and files of users. They can hold characters that steer a
terminal, and credentials that somebody put into a URL.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rankwatch.untrusted.folders import look

HIDDEN = "***"
"""Stands where a secret stood."""

_MESSAGE_READ = 4096
"""Characters of a message that are looked at; a signed URL has some 1,500."""

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Python calls printable and that show nothing (Unicode's Default_Ignorable_Code_Point)."""
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""First characters from which a spreadsheet takes a cell as a formula (OWASP, CSV injection)."""

_WORD = re.compile(r"[^\s\"<>`]++")
_AUTHORITY = re.compile(
    r":(?:\\?/){2}|\b(?:https?|ftps?|s3[an]?|gs|gcs|abfss?|wasbs?|(?:web)?hdfs):/(?!/)", re.IGNORECASE
)
"""Text before the authority of a URL. `Path("https://host")` and JSON change the slashes."""
_HOST = re.compile(r"(?:\[[^\]]*+\]|[^:]*+)(?::\d*+)?|[0-9A-Fa-f:.]*+")
"""Authorities without a password: `host`, `host:443`, `[::1]:443`, `::1`."""
_CONTAINER = ("abfs", "abfss", "wasb", "wasbs")
"""Schemes in which `container@account` is a place and not a login."""
_CLOSING = "'\")]}>.,;!"
"""Ends of a word that belong to the sentence around a URL."""
_BEFORE_LOGIN = "=,;([{'"
_CONTACT_WORDS = ("mailto", "contact", "email", "mail")
_QUERY = re.compile(r"\?[\w.~%+-]++=")
_SECRET = r"""(?xi) (?= [abceghlmoprst] [aceifnoprtuw] ) (?:  # as all names below begin: five times as fast
    (?: (?: passw(?:or)?d | passphrase | pwd | secret | access[-_]?key[-_]?id | authorization
          | (?: access | account | api | auth | encryption | license | master | private | secret | session
              | signing | storage | subscription ) [-_]?key ) ["']? \s{0,4} [=:]
      | (?P<weak> (?: signature | (?<![a-z])sig | token | credential )
                  (?: ["']? \s{0,4} = | ["'] \s{0,4} : )
                | (?: access | api | auth | bearer | github | gitlab | hf | oauth | refresh | secret
                    | security | session ) [-_]?token \s{0,4} :
                | token \s{0,4} : (?= \s{0,4} ["']?
                    (?! [-+]?[\d.,]++ (?:e[-+]?\d++)? [a-z%]{0,3} (?:/[a-z]{1,6})? (?!\w) )
                    (?= [-\w.~+/=]{0,99}? \d ) (?= [-\w.~+/=]{0,99}? [a-z] ) ) )
    ) \s{0,4} (?: (?: bearer | basic | digest | token | aws4-hmac-sha256 ) \s{1,4} )?
    (?P<value> (?=[^\s,;&]) (?: "[^"\n]*+" | '[^'\n]*+' )?+ (?P<rest> [^\s,;&]*+ ) )
    | \b bearer \s{1,4} (?P<bearer> [\w.~+/=-]{12,}+ )
    )"""
"""Things that are called a secret. Many a `token: ` is none: there the value must have letters and digits,
and be no number with a unit. Compiled at its first use: few processes have anything to redact."""
_MOST_PASSES = 4
"""Passes over a text: what one leaves of a text that is made for it may look like a login again."""
_SHORTEST_WEAK = 6
"""Characters of a token: `pad_token=0` is none."""


def is_hidden(path: Path, *, if_gone: bool = False) -> bool:
    """Return True if the mode of a file hides it from other users, as the umask of its writer may have it.

    Root can read it, and must not show it to everybody. True where its folder is a link or may not be looked
    into.

    if_gone: the answer where there is no file.
    """
    try:
        return not look(path).st_mode & stat.S_IROTH
    except OSError as error:
        return if_gone if isinstance(error, FileNotFoundError) else True


def printable(text: str, *, keep: str = "") -> str:
    """Return the text with a `?` for each character that could steer a terminal, turn the line around or
    hide in it, except those in `keep`: all controls, bidirectional marks, zero-width characters,
    surrogates, tags."""
    if text.isascii():
        if text.isprintable():
            return text
    elif text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(each if each in keep or _is_shown(each) else "?" for each in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() and not _INVISIBLE.match(character)


def shown_json(text: str) -> str:
    """Return the same of a JSON text, whose strings keep their meaning: such characters are escaped in it."""
    lines = text.replace("\n", "")
    if printable(lines) == lines:
        return text
    return "".join(each if each == "\n" or _is_shown(each) else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1].replace("\x7f", "\\u007f")


def spreadsheet_cell(text: str) -> str:
    """Return the text as a cell of a table that no spreadsheet takes for a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def last_argument(text: str) -> str:
    """Return the text as the end of a command to be copied into a shell: one word, and no option."""
    from shlex import quote

    shown = quote(printable(text))
    return f"-- {shown}" if shown.startswith("-") else shown


def redacted(text: str) -> str:
    """Return the text without credentials, in linear time.

    Without userinfo, query and fragment of URLs, without logins such as `user:password@`, and without the
    value of what is called a password, a key, a token or a signature.
    """
    return _until_stable(lambda each: _WORD.sub(_without_login, re.sub(_SECRET, _without_value, each)), text)


def message_of(text: str) -> str:
    """Return the beginning of the message of an error in one line, printable and without credentials."""
    line = " ".join(text[:_MESSAGE_READ].split())
    if len(text) > _MESSAGE_READ:
        whole, _, last = line.rpartition(" ")
        line = whole if ":" in last else line  # perhaps a login whose end, which tells it, is cut off
    return printable(redacted(line))


def redacted_place(place: str) -> str:
    """Return the same of a text that is one path or one URL: a path stays as it is, whatever it holds."""
    return _until_stable(_without_userinfo, place) if ":" in place else place


def redacted_page(url: str) -> str:
    """Return the same of the address of a page to look at, whose query and fragment name it: without its
    userinfo, and without the values of keys and tokens in it."""
    parts = urlsplit(url)
    query, fragment = (re.sub(_SECRET, _without_value, each) for each in (parts.query, parts.fragment))
    netloc = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=netloc, query=query, fragment=fragment).geturl()


def _until_stable(change: Callable[[str], str], text: str) -> str:
    for _ in range(_MOST_PASSES):
        before, text = text, change(text)
        if text == before:
            break
    return text


def _without_login(match: re.Match[str]) -> str:
    found = match[0]
    if _AUTHORITY.search(found) is not None:
        return _without_userinfo(found)
    query = _QUERY.search(found)
    if query is not None:
        found = found[: query.start()] + _closing(found)
    at = found.rfind("@")
    user, colon, password = found[: max(0, at)].partition(":")
    begins = max(user.rfind(each) for each in _BEFORE_LOGIN) + 1
    name = user[begins:]
    is_path = "/" in name or "\\" in name or password.startswith(("/", "\\"))
    if not colon or not found[at + 1 :].strip(_CLOSING) or is_path or name.lower() in _CONTACT_WORDS:
        return found
    return f"{user[:begins]}{HIDDEN}{found[at:]}"


def _without_userinfo(found: str) -> str:
    """Return a word with URLs in it, one after the other or one inside the other."""
    marks = list(_AUTHORITY.finditer(found))
    if not marks:
        return found
    parts = [found[: marks[0].end()]]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        part = found[mark.end() : following.start() if following else None]
        scheme = found[max(0, mark.start() - 5) : mark.start()].lower()
        part, is_cut = _part(part, holds_container=scheme.endswith(_CONTAINER))
        if is_cut:
            return "".join((*parts, part, _closing(found)))
        parts += (part, following[0] if following else "")
    return "".join(parts)


def _part(part: str, *, holds_container: bool) -> tuple[str, bool]:
    """Return what follows `://`, without userinfo, query and fragment; True if one of the last two was there.

    No host has a port that is no number. Before it there is a password with one of `/?#` in it, or one whose
    end was cut off. A password may have an `@` too, so it ends at the last one; where that may be one of the
    query, nothing is left.
    """
    end = _end_of_authority(part)
    at = part.rfind("@", 0, end)
    if at >= 0 and ":" in part[:at]:
        last = part.rfind("@")
        if _first_of(part, "?#") < last:
            return HIDDEN, True
        at = last
    if at < 0 and not _HOST.fullmatch(part, 0, end):
        at = part.rfind("@")
    if at >= 0 and not (holds_container and ":" not in part[:at]):
        part = part[at + 1 :]
        end = _end_of_authority(part)
    if not _HOST.fullmatch(part, 0, end):
        part = HIDDEN + part[end:]
    end = _first_of(part, "?#")
    return part[:end], end < len(part)


def _end_of_authority(part: str) -> int:
    return len(part[: _first_of(part, "/?#\\")].rstrip(_CLOSING + ":"))


def _first_of(text: str, characters: str) -> int:
    return min((at for each in characters if (at := text.find(each)) >= 0), default=len(text))


def _closing(found: str) -> str:
    return found[len(found.rstrip(_CLOSING)) :]


def _without_value(match: re.Match[str]) -> str:
    group = "bearer" if match["value"] is None else "value"
    if match["weak"] is not None and len(match[group].strip("\"'" + _CLOSING)) < _SHORTEST_WEAK:
        return match[0]
    before = match[0][: match.start(group) - match.start()]
    return f"{before}{HIDDEN}{_closing(match['rest'] or '')}"


def json_entries(raw: bytes, name: str, most: int) -> list[object]:
    """Return the first entries of the list of this name; none if the note makes no sense."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    entries = document.get(name) if isinstance(document, dict) else None
    return entries[:most] if isinstance(entries, list) else []
