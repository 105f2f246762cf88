"""Commands of `dledger admin` are declared, and the help of their group names them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from dledger.commands.app import command

ROOT = Path(__file__).resolve().parents[2] / "dledger" / "commands"
ACTIONS = sorted((ROOT / "admin").glob("*.py"))
DECLARED = "\n".join(path.read_text() for path in sorted((ROOT / "declared").rglob("*.py")))


def actions(tree: ast.Module) -> list[str]:
    """Names of the functions that do the work of a command: `async def action(admin, told, ...)`."""
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.AsyncFunctionDef)
        and [argument.arg for argument in node.args.args[:2]] == ["admin", "told"]
        and not node.name.startswith("_")
    ]


def test_an_action_is_recognised() -> None:
    source = (
        "async def show(admin, told, name): ...\nasync def _part(admin, told): ...\ndef other(admin): ..."
    )
    assert actions(ast.parse(source)) == ["show"]
    assert sum(len(actions(ast.parse(path.read_text()))) for path in ACTIONS) > 40


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.stem)
def test_each_action_is_declared(path: Path) -> None:
    for name in actions(ast.parse(path.read_text())):
        place = f"{path.stem}:{name}"
        assert f'"{place}"' in DECLARED, (
            f"no command calls {name} of dledger/commands/admin/{path.name}: declare it with "
            f"action(..., {place!r}, ...) in dledger/commands/declared/admin/"
        )


def groups() -> dict[str, click.Group]:
    """The groups below `dledger admin`, by name."""
    context = click.Context(command)
    admin = command.get_command(context, "admin")
    assert isinstance(admin, click.Group)
    found = {name: admin.get_command(context, name) for name in admin.list_commands(context)}
    return {name: one for name, one in found.items() if isinstance(one, click.Group)}


@pytest.mark.parametrize("name", groups())
def test_the_help_of_a_group_names_its_commands(name: str) -> None:
    group = groups()[name]
    text = (group.help or "").partition("\n")[0]
    assert ": " in text, f"the help of the group {name!r} is `What it is about: its commands.`"
    said = re.split(r",\s*|\s+and\s+", text.partition(": ")[2].rstrip("."))
    there = group.list_commands(click.Context(group))
    missing, gone = [one for one in there if one not in said], [one for one in said if one not in there]
    assert not missing, f"add to the help of the group {name!r}: {', '.join(missing)}"
    assert not gone, f"the help of the group {name!r} names what is no command: {', '.join(gone)}"
