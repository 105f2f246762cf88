"""Makes HTML of a page's data.

Texts that come from the cluster are shown as they are: markup is escaped, and characters that a browser would
obey or hide are replaced by visible ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
import msgspec
from markupsafe import Markup

from dledger.dashboard.pages.page import Page
from dledger.dashboard.pages.registry import PAGES
from dledger.dashboard.wording import LANGUAGES, Wording

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
MAIN = '<main id="main" tabindex="-1">'
"""Where the changing part of a page begins."""


def visible(value: Any) -> Any:
    """A text without characters that a browser would obey or hide; other values as they are.

    >>> visible("a\\x00b")
    'a␀b'
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _HIDDEN.sub(_picture, value)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else f"[U+{code:04X}]"


def number(value: float | None) -> str:
    """A number with separators.

    >>> number(1234567), number(0.25), number(None)
    ('1,234,567', '0.2', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.1f}"


def size(value: float | None) -> str:
    """A number of bytes for people.

    >>> size(512), size(3 << 20)
    ('512 B', '3.0 MiB')
    """
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit ends the loop")


def percent(value: float | None) -> str:
    """A share of 0 to 1 as percent."""
    return "–" if value is None else f"{value * 100:.0f} %"


def span(seconds: float | None) -> str:
    """A length of time for people.

    >>> span(0.4), span(75), span(7300), span(200000)
    ('0.4 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    for large, small, unit, less in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= large:
            return f"{whole // large} {unit} {whole % large // small} {less}"
    raise AssertionError("60 s or more end in the loop")


def time_of(ms: int | None) -> Markup | str:
    """A time as an element that the browser shows in its own zone, and without JavaScript in UTC."""
    if not ms or not 0 < ms < 253_402_300_800_000:
        return "–"
    at = datetime.fromtimestamp(ms / 1000, UTC)
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}">{} UTC</time>').format(at.isoformat(timespec="milliseconds"), text)


def json_text(value: Any) -> Markup:
    """A value as JSON inside a script element."""
    text = msgspec.json.encode(value).decode()
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("dledger.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    found.filters |= {
        "number": number,
        "size": size,
        "percent": percent,
        "span": span,
        "time": time_of,
        "json": json_text,
    }
    return found


class Links:
    """The addresses of the pages of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._root = f"/{quote(cluster, safe='')}/"

    def __call__(self, name: str, words: Mapping[str, Any] | None = None, **names: str) -> str:
        """The address of a page. `words` come after the question mark; empty ones are left out."""
        page = next(one for one in PAGES if one.name == name)
        path = page.path.format(**{key: quote(text, safe="") for key, text in names.items()})
        told = {key: value for key, value in (words or {}).items() if value not in ("", None)}
        return self._root + path + (f"?{urlencode(told)}" if told else "")


def render(
    page: Page,
    data: msgspec.Struct,
    *,
    wording: Wording,
    cluster: str,
    clusters: tuple[str, ...],
    command: str,
    address: str,
    languages: Mapping[str, str],
    only_main: bool = False,
) -> str:
    """The HTML of a page, or only its changing part. `address` is the path and the parameters of the request,
    and `languages` maps each language to the address of the same page in it."""
    values = {
        "data": data,
        "page": page,
        "pages": [one for one in PAGES if one.listed],
        "t": wording,
        "languages": [(code, LANGUAGES[code], at) for code, at in languages.items()],
        "link": Links(cluster),
        "cluster": cluster,
        "clusters": clusters,
        "command": command,
        "address": address,
    }
    text = _environment().get_template(f"{page.name}.html").render(values)
    if only_main:  # texts of the cluster are escaped, so the marks are those of the page itself
        return text.partition(MAIN)[2].rpartition("</main>")[0]
    return text


def render_problem(title: str, text: str, *, wording: Wording, clusters: tuple[str, ...]) -> str:
    """The HTML of a page that says what is wrong, or that lists the clusters."""
    values = {"title": title, "text": text, "t": wording, "clusters": clusters, "languages": LANGUAGES}
    return _environment().get_template("problem.html").render(values)
