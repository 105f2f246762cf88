"""Arrows only go down: no module of the product imports, over others, itself (type hints aside)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.test_tidy import OTHER_PARTS, ROOT, dotted, named_modules, our_modules

Graph = Mapping[str, frozenset[str]]


def name_of(path: Path) -> str:
    """The module's name: `dledger/broker/app.py` is `dledger.broker.app`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def at_import(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements that run when the module is imported."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.Try):
            yield from at_import([*node.body, *(one for handler in node.handlers for one in handler.body)])
        elif isinstance(node, ast.If):
            typed = dotted(node.test).split(".")[-1] == "TYPE_CHECKING"
            yield from at_import(node.orelse if typed else [*node.body, *node.orelse])


def imports_of(source: str, known: frozenset[str]) -> frozenset[str]:
    """Modules of ours that a module imports at once."""
    found: list[str] = []
    for node in at_import(ast.parse(source).body):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name in known else node.module for name in names]
    return frozenset(name for name in found if name in known)


def circle(graph: Graph) -> list[str]:
    """One way from a module back to itself; empty when there is none."""
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        ways: list[Iterator[str]] = [iter([start])]
        while ways:
            name = next(ways[-1], None)
            if name is None:
                ways.pop()
                if path:
                    done.add(path.pop())
            elif name in path:
                return [*path[path.index(name) :], name]
            elif name not in done:
                path.append(name)
                ways.append(iter(sorted(graph.get(name, frozenset()))))
    return []


@cache
def graph_of_the_product() -> Graph:
    paths = {name_of(path): path for path in our_modules()}
    known = frozenset(paths)
    return {name: imports_of(path.read_text(), known) - {name} for name, path in paths.items()}


def test_no_module_imports_itself_over_others() -> None:
    graph = graph_of_the_product()
    assert len(graph) > 400 and sum(map(len, graph.values())) > 2000
    assert circle(graph) == []


FLOORS = (
    ("log", "replication"),
    ("election",),
    ("flight",),
    ("peers",),
    ("context",),
    ("snapshots",),
    ("files",),
    ("members",),
    ("node",),
)
"""Folders of the core, the lowest first. A folder imports only those below it."""


def test_folders_of_the_log_stand_on_each_other() -> None:
    floor = {f"dledger.{folder}": number for number, folders in enumerate(FLOORS) for folder in folders}
    inside = {path.name for path in (ROOT / "dledger").iterdir() if path.is_dir()}
    assert inside - {*OTHER_PARTS, "__pycache__"} == {name.removeprefix("dledger.") for name in floor}

    def floor_of(name: str) -> int | None:
        return floor.get(".".join(name.split(".")[:2]))

    found = 0
    for name, imported in graph_of_the_product().items():
        here = floor_of(name)
        for other in imported:
            below = floor_of(other)
            if here is not None and below is not None:
                found += 1
                assert below <= here, f"{name} imports {other}, which stands above it"
    assert found > 100


def all_imports(source: str, known: frozenset[str]) -> frozenset[str]:
    """Modules of ours that a module imports at any time: also inside of functions, and for type hints."""
    body = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return imports_of(ast.unparse(ast.Module([*body], [])), known)


def package_of(name: str, path: Path) -> str:
    """`dledger.broker` of everything below it. A module of `dledger/` itself stands for itself."""
    inside = len(path.relative_to(ROOT).parts) > 2
    return ".".join(name.split(".")[:2]) if inside else name


def test_no_package_imports_itself_over_others() -> None:
    """At any time: imports inside of functions and for type hints count."""
    paths = {name_of(path): path for path in our_modules()}
    known = frozenset(paths)
    packages = {name: package_of(name, path) for name, path in paths.items()}
    graph: dict[str, frozenset[str]] = {}
    for name, path in paths.items():
        imported = frozenset(packages[one] for one in all_imports(path.read_text(), known))
        graph[packages[name]] = graph.get(packages[name], frozenset()) | imported - {packages[name]}
    assert len(graph) > 30 and "dledger.node" in graph["dledger.broker"]
    assert circle(graph) == []


def test_nobody_imports_the_command_line() -> None:
    """But for the command itself, and what tries the product from the outside."""
    allowed = ("dledger.commands", "dledger.chaos", "dledger.bench", "dledger.__main__")
    for name, imported in graph_of_the_product().items():
        if not name.startswith(allowed):
            assert not [one for one in imported if one.startswith("dledger.commands")], name


def test_a_circle_is_found() -> None:
    known = frozenset({"dledger.a", "dledger.b", "dledger.c"})
    sources = {
        "dledger.a": "from dledger import b",
        "dledger.b": "try:\n    import dledger.c\nexcept ImportError:\n    pass",
        "dledger.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import dledger.a",
    }
    graph = {name: imports_of(source, known) for name, source in sources.items()}
    assert circle(graph) == []
    closed = {**graph, "dledger.c": imports_of("from dledger.a import x", known)}
    assert circle(closed) == ["dledger.a", "dledger.b", "dledger.c", "dledger.a"]


CLIENT = "dledger.client"
SENDS_TRACES = (f"{CLIENT}.producing.producer", "tracing_of")
"""The only name that consumers take from the producers: the producer that sends their message traces."""


def client_room(name: str) -> str | None:
    """Which part of the client a module is in: `producing`, `consuming`, `bulk`, or `shared`."""
    if not name.startswith(f"{CLIENT}."):
        return None  # also the package itself, which offers the names of all
    first = name.split(".")[2]
    return first if first in ("producing", "consuming", "bulk") else "shared"


def test_producers_and_consumers_share_modules_that_know_neither() -> None:
    """At any time: imports inside of functions and for type hints count."""
    paths = {name_of(path): path for path in our_modules()}
    known = frozenset(paths)
    may_import = {
        "shared": {"shared"},
        "producing": {"shared", "producing"},
        "consuming": {"shared", "consuming"},
        "bulk": {"shared", "consuming", "bulk"},
    }
    found: list[str] = []
    for name, path in paths.items():
        room = client_room(name)
        if room is None:
            continue
        found.append(room)
        source = path.read_text()
        for other in all_imports(source, known):
            there = client_room(other)
            assert other != CLIENT, f"{name} imports {CLIENT}, which imports everything: import the module"
            if there is None or there in may_import[room]:
                continue
            assert room == "consuming" and other == SENDS_TRACES[0], f"{name} imports {other}"
            taken = [
                alias.name
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.ImportFrom) and node.module == other
                for alias in node.names
            ]
            assert taken == [SENDS_TRACES[1]], f"{name} takes {taken} from {other}"
    assert set(found) == set(may_import) and len(found) > 60


def test_the_rooms_of_the_client_list_their_modules() -> None:
    for room in ("", "producing", "consuming", "bulk"):
        package = ROOT / "dledger" / "client" / room / "__init__.py"
        there = {path.stem for path in package.parent.glob("*.py")} - {"__init__"}
        listed = set(named_modules(package.read_text()))
        assert there <= listed, f"add to the docstring of {package.relative_to(ROOT)}: {there - listed}"
