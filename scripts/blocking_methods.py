"""Writes the methods of the clients for programs without an event loop: each waits for its asynchronous twin.

    python -m scripts.blocking_methods                     # writes them
    scripts/test tests/client/test_blocking_methods.py     # compares

A class for programs without an event loop begins with the methods that are written by hand. Behind a line
`# Generated ...` follow those that only wait. Their names, arguments, types and docstrings are those of the
asynchronous class, and type checkers, editors and the documentation see ordinary methods.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dledger.client import (
    AsyncLitePullConsumer,
    AsyncPopConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSpoolingProducer,
    AsyncTransactionProducer,
    LitePullConsumer,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SpoolingProducer,
    TransactionProducer,
)
from dledger.client.bulk.range_puller import RangePuller
from dledger.client.bulk.ranges import RangeReader
from dledger.client.lifecycle import AsyncClient

MARK = "# Generated from {original} by scripts/blocking_methods.py: change it there."
Method = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Twins:
    """An asynchronous class, the class that waits for it, and the methods that the latter does not get."""

    original: type[AsyncClient]
    blocking: type
    without: tuple[str, ...] = ()


TWINS = (
    # Callbacks of these run on the event loop. Other threads have `send_async` and `begin`.
    Twins(AsyncProducer, Producer, ("prepare", "send_batch_nowait", "send_nowait", "send_soon")),
    Twins(AsyncTransactionProducer, TransactionProducer),
    Twins(AsyncSpoolingProducer, SpoolingProducer),
    Twins(AsyncPushConsumer, PushConsumer),
    Twins(AsyncPullConsumer, PullConsumer),
    Twins(AsyncLitePullConsumer, LitePullConsumer),
    Twins(AsyncPopConsumer, PopConsumer),
    Twins(RangeReader, RangePuller),
)


def class_of(source: str) -> ast.ClassDef:
    """The class that a source consists of."""
    (tree,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(tree, ast.ClassDef)
    return tree


def public_methods(tree: ast.ClassDef) -> dict[str, Method]:
    """Public methods and properties of a class, in their order; of overloads the last one."""
    found = {node.name: node for node in tree.body if isinstance(node, Method)}
    return {name: node for name, node in found.items() if not name.startswith("_")}


def base_of(twins: Twins) -> Twins | None:
    """The twins from which these inherit."""
    bases = (one for one in TWINS if one is not twins and issubclass(twins.blocking, one.blocking))
    return next(bases, None)


def originals(twins: Twins) -> dict[str, Method]:
    """Public methods of the asynchronous class. Those of the base twins are inherited, and not among them."""
    base = base_of(twins)
    inherited = AsyncClient if base is None else base.original
    found: dict[str, Method] = {}
    for kind in reversed(twins.original.__mro__):
        if issubclass(kind, AsyncClient) and not issubclass(inherited, kind):
            found.update(public_methods(class_of(inspect.getsource(kind))))
    return found


def by_hand(source: str) -> str:
    """The part of a class that is written by hand, without an empty line at its end."""
    return re.split(r"\n *" + re.escape(MARK.partition("{")[0]), source)[0].rstrip()


def generated(twins: Twins) -> str:
    """The part of the blocking class that is generated, in no particular format."""
    known = public_methods(class_of(by_hand(inspect.getsource(twins.blocking))))
    lines = [MARK.format(original=twins.original.__name__)]
    for name, node in originals(twins).items():
        if name not in known and name not in twins.without:
            lines += ["", *method(twins, node)]
    return textwrap.indent("\n".join(lines), "    ")


def method(twins: Twins, node: Method) -> Iterator[str]:
    """The lines of one method."""
    is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)
    text = ast.get_docstring(node)
    assert text is not None and node.returns is not None, f"{node.name} lacks a docstring or a type"
    if is_property:
        yield "@property"
    yield f"def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}:"
    raw = ast.get_docstring(node, clean=False) or ""
    end = "\n" if raw.rstrip(" ").endswith("\n") else ""
    yield textwrap.indent(f'"""{text}{end}"""', "    ")
    inner = "inner" if base_of(twins) is None else f"cast({twins.original.__name__}, inner)"
    given = [argument.arg for argument in node.args.args[1:]]
    given += [f"{argument.arg}={argument.arg}" for argument in node.args.kwonlyargs]
    call = f"{inner}.{node.name}" + ("" if is_property else f"({', '.join(given)})")
    # A coroutine is waited for; everything else is quick, and only called on the loop.
    waits = "self._run" if isinstance(node, ast.AsyncFunctionDef) else "self._call"
    gives = "" if ast.unparse(node.returns) == "None" else "return "
    yield f"    {gives}{waits}(lambda inner: {call})"


def path_of(twins: Twins) -> Path:
    """The file of the blocking class."""
    return Path(inspect.getfile(twins.blocking))


def main() -> None:
    """Write all generated parts, and format the files."""
    for twins in TWINS:
        source = inspect.getsource(twins.blocking)
        path = path_of(twins)
        text = path.read_text()
        assert text.count(source) == 1, f"{path} was changed while this ran"
        path.write_text(text.replace(source, f"{by_hand(source)}\n\n{generated(twins)}\n"))
    files = sorted({str(path_of(twins)) for twins in TWINS})
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", *files], check=True)


if __name__ == "__main__":
    main()
