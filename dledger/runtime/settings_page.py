"""Makes the tables of settings in docs/reference/settings.md, in Markdown, from the declarations and from the
texts below the fields."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from dledger.runtime.settings import Declared, Schema

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def table(schema: Schema[Any], chosen: Callable[[Declared], bool] = lambda one: True) -> str:
    """Return a table with one row for each setting. Raises ValueError, which names a field, if the field has
    no text."""
    defaults = schema.type()
    rows = ["| setting | meaning | default | range | |", "|---|---|---|---|---|"]
    for one in filter(chosen, schema.settings):
        setting = one.setting
        meaning = meaning_of(schema.type, one.path)
        default = _with_unit(one.shown(one.value(defaults)), setting.unit)
        live = "live" if setting.hot else ""
        cells = [f"`{setting.name}`", meaning, default, _range(one), live]
        rows.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
    return "\n".join(rows) + "\n"


def meaning_of(type_: type, path: tuple[str, ...]) -> str:
    """Return the text below the declaration of a field."""
    for group in path[:-1]:
        type_ = get_type_hints(type_)[group]
    for owner in type_.__mro__:
        text = _texts(owner).get(path[-1]) if is_dataclass(owner) else None
        if text is not None:
            return text
    raise ValueError(f"{type_.__name__}.{path[-1]}: a text below it must say what it means")


def _texts(owner: type) -> dict[str, str]:
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(declared, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(declared.body, declared.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            texts[ast.unparse(field.target)] = " ".join(str(below.value.value).split()).removesuffix(".")
    return texts


def _range(one: Declared) -> str:
    setting = one.setting
    if setting.choices is not None:
        return ", ".join(f"`{text}`" for text in setting.choices)
    if one.kind is bool:
        return "`true`, `false`"
    if setting.ge == -math.inf:
        return ""
    low, high = str(setting.ge), _with_unit(str(setting.le), setting.unit)
    if setting.unit.startswith("bytes") and setting.ge >= 1024:
        low = _with_unit(low, setting.unit)
    return f"{low} to {high}"


def _with_unit(text: str, unit: str) -> str:
    """Return a number of bytes as text, in the largest unit that divides it."""
    if not text.isdecimal() or not unit or text == "0":
        return text
    if not unit.startswith("bytes"):
        return f"{text} {unit}"
    for size, word in _SIZES:
        if int(text) % size == 0:
            return f"{int(text) // size} {word}{unit.removeprefix('bytes')}"
    return f"{text} {unit}"
