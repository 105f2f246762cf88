"""For the site (mkdocs.yml): examples of docstrings (`>>> ...`) become blocks of code, without what is for
doctest."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SKIP = re.compile(r"\s*# doctest:.*$")


class Examples(griffe.Extension):
    """Rewrites docstrings when they are read."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with each run of `>>>`, `...` and output as one block."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        starts = line.startswith(">>> ")
        if starts and not inside:
            lines += ["", "```python"]
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        if not inside:
            lines.append(line)
        elif starts or line.startswith("..."):
            lines.append(_SKIP.sub("", line[4:]))
        else:
            lines.append(f"# {line}")
    if inside:
        lines.append("```")
    return "\n".join(lines)
