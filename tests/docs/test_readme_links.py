"""The links of pages outside of the site (README, CHANGELOG), which mkdocs does not see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and the usual code hosts name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    """The relative links of a page that lead nowhere."""
    for target, anchor in _LINK.findall(page.read_text()):
        file = page.parent / target if target else page
        if not file.exists():
            yield target
        elif anchor and anchor not in anchors(file):
            yield f"{target}#{anchor}"


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("*.md")))
def test_no_link_is_broken(name: str) -> None:
    assert list(broken_links(ROOT / name)) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One title: here\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#one-title-here) [c](https://x/y.md) [d](gone.md) [e](there.md#no)\n"
    )
    assert list(broken_links(page)) == ["gone.md", "there.md#no"]
