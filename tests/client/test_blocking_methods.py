"""Clients for programs without an event loop have the methods of their asynchronous twins, as generated."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from scripts.blocking_methods import MARK, TWINS, Twins, by_hand, class_of, generated, method, public_methods

ROOT = Path(__file__).resolve().parents[2]
WRITE = "run `python -m scripts.blocking_methods`, or this test with --rewrite"


def in_one_form(source: str) -> str:
    """Methods without their layout: blanks, line breaks, and the indentation of docstrings."""
    tree = class_of(f"class Methods:\n{source}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = inspect.cleandoc(node.value).rstrip()
    return ast.unparse(tree)


@pytest.mark.parametrize("twins", TWINS, ids=[twins.blocking.__name__ for twins in TWINS])
def test_the_generated_methods_are_those_of_the_asynchronous_class(
    twins: Twins, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--rewrite"):
        subprocess.run([sys.executable, "-m", "scripts.blocking_methods"], cwd=ROOT, check=True)
        pytest.skip("rewritten: compare in another run, which reads the new files")
    source = inspect.getsource(twins.blocking)
    mark = MARK.format(original=twins.original.__name__)
    assert source.count(mark) == 1, f"{twins.blocking.__name__} has no line {mark!r}: {WRITE}"
    now = source[len(by_hand(source)) :]
    name = f"{twins.blocking.__name__}, generated from {twins.original.__name__}"
    assert in_one_form(now) == in_one_form(generated(twins)), f"{name}, is not up to date: {WRITE}"


def test_methods_wait_and_properties_are_read_on_the_loop() -> None:
    source = '''
    class Original:
        async def poll(self, timeout_s: float = 1.0, *, most: int | None = None) -> list[str]:
            """Get some.

            In order.
            """
        def pause(self, names: list[str]) -> None:
            """Stop."""
        @property
        def paused(self) -> bool:
            """Whether it is."""
    '''
    nodes = public_methods(class_of(textwrap.dedent(source).strip()))
    written = ["\n".join(method(TWINS[0], node)) for node in nodes.values()]
    assert written == [
        "def poll(self, timeout_s: float=1.0, *, most: int | None=None) -> list[str]:\n"
        '    """Get some.\n\n    In order.\n    """\n'
        "    return self._run(lambda inner: inner.poll(timeout_s, most=most))",
        'def pause(self, names: list[str]) -> None:\n    """Stop."""\n'
        "    self._call(lambda inner: inner.pause(names))",
        '@property\ndef paused(self) -> bool:\n    """Whether it is."""\n'
        "    return self._call(lambda inner: inner.paused)",
    ]


def test_a_method_that_does_not_fit_is_noticed() -> None:
    """Names, defaults, types and docstrings count; layout does not."""
    body = "return self._run(lambda inner: inner.f(a))"
    written = f'    def f(self, a: int = 1) -> int:\n        """A."""\n        {body}'
    same = f'    def f(\n        self, a: int=1\n    ) -> int:\n        "A."\n        {body}'
    assert in_one_form(written) == in_one_form(same)
    for old, new in (("a: int = 1", "a: int = 2"), ("-> int", "-> str"), ("A.", "B."), ("f(self", "g(self")):
        assert in_one_form(written) != in_one_form(written.replace(old, new))
