"""Generated parts of docs/reference/errors.md: exceptions and codes, from docs/data/errors.toml."""

from __future__ import annotations

import ast
import builtins
import tomllib
from collections.abc import Callable, Collection
from enum import IntEnum
from functools import cache, partial
from pathlib import Path
from typing import Any

import dledger
from dledger.messages import Code
from dledger.remoting.codes import ResponseCode

ROOT = Path(__file__).resolve().parents[2]
DATA = "docs/data/errors.toml"
SEEN = ("clients", "reading", "programs")
"""Sections of the file with exceptions that users see."""
NOT_THE_PRODUCT = ("bench", "chaos")
"""Packages whose exceptions only developers see."""


@cache
def known() -> dict[str, Any]:
    """docs/data/errors.toml."""
    return tomllib.loads((ROOT / DATA).read_text())


def exceptions() -> set[str]:
    """The names of all exception classes of the product, by their bases. Those with `_` are private."""
    bases: dict[str, list[str]] = {}
    for path in (ROOT / "dledger").rglob("*.py"):
        if path.relative_to(ROOT).parts[1] in NOT_THE_PRODUCT:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = [ast.unparse(base).split(".")[-1] for base in node.bases]
                bases.setdefault(node.name, []).extend(names)
    builtin = {name for name, one in vars(builtins).items() if _is_exception(one)}
    found: set[str] = set()
    while True:
        more = {name for name, of in bases.items() if not found.isdisjoint(of) or not builtin.isdisjoint(of)}
        if more == found:
            return {name for name in found if not name.startswith("_")}
        found = more


def _is_exception(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, BaseException)


def misplaced(there: Collection[str], seen: Collection[str], internal: Collection[str]) -> list[str]:
    """What to change in the file so that each exception is in one of its lists, a sentence for each."""
    return [
        *(
            f"{name} is missing in {DATA}: say in one of {', '.join(SEEN)} what it means and what to do, or "
            "name it in `internal` if no user has to catch it"
            for name in sorted(set(there) - set(seen) - set(internal))
        ),
        *(
            f"{name} is in {DATA}, and there is no such exception: remove it"
            for name in sorted({*seen, *internal} - set(there))
        ),
        *(
            f"{name} is in two lists of {DATA}: remove it from one"
            for name in sorted(set(seen) & set(internal))
        ),
    ]


def table(rows: dict[str, list[str]], name_of: Callable[[str], str]) -> str:
    """Name, meaning and what to do."""
    lines = [f"| {name_of(name)} | {meaning} | {action} |\n" for name, (meaning, action) in rows.items()]
    return "| name | what it means | what to do |\n|---|---|---|\n" + "".join(lines)


def of_exceptions(section: str) -> str:
    """One table of exceptions. Every exception of the product must be in the file."""
    seen = [name for one in SEEN for name in known()[one]]
    wrong = misplaced(exceptions(), seen, known()["internal"]["names"])
    assert not wrong, "\n" + "\n".join(wrong)
    public = dledger.__all__
    return table(known()[section], lambda name: f"`dledger.{name}`" if name in public else f"`{name}`")


def of_codes(kind: type[IntEnum], sections: tuple[str, ...], section: str) -> str:
    """One table of codes, by number. Every code must be in one of the sections."""
    rows: dict[str, list[str]] = {name: row for one in sections for name, row in known()[one].items()}
    missing = [code.name for code in kind if code.name not in rows]
    assert not missing, f"say in {DATA} what {missing[0]} means and what to do"
    unknown = sorted(rows.keys() - {code.name for code in kind})
    assert not unknown, f"{unknown[0]} of {DATA} is no {kind.__name__}: remove it"
    here = {code.name: rows[code.name] for code in sorted(kind) if code.name in known()[section]}
    return table(here, lambda name: f"{int(kind[name])} {name}")


RESPONSES = ("responses", "elsewhere")
PARTS: dict[str, Callable[[], str]] = {
    "errors-clients": partial(of_exceptions, "clients"),
    "errors-reading": partial(of_exceptions, "reading"),
    "errors-programs": partial(of_exceptions, "programs"),
    "response-codes": partial(of_codes, ResponseCode, RESPONSES, "responses"),
    "response-codes-elsewhere": partial(of_codes, ResponseCode, RESPONSES, "elsewhere"),
    "log-codes": partial(of_codes, Code, ("log",), "log"),
}
