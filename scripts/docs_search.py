"""A hook of mkdocs: pages for people who change the code stay out of the search of the site.

Decisions and the bug ledger name every feature. Without this they would fill the results for any word.
"""

from __future__ import annotations

from typing import Any

NOT_SEARCHED = ("explanation/decisions/", "internals/bug-ledger.md")
"""Beginnings of the paths of such pages. They are in the navigation like all others."""


def on_page_markdown(markdown: str, /, *, page: Any, **_: Any) -> str:
    """Mark a page as its front matter could, `search: {exclude: true}`."""
    if page.file.src_uri.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    return markdown
