"""The rules of the house, enforced: who may import whom, what is pure, which doors lead outside.

A place that must break a rule stands in an allow-list below, with its reason. Every rule has snippets that it
must find (`BAD`) and the nearest ones that it must not (`GOOD`), so that a checker gone blind is noticed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_MODULE_LINES = 600
MAX_CLASS_LINES = 900
"""Most lines of a module that is one class, with its imports, constants and small functions: such a module is
not divided only because of its length."""
MAX_CONSTRUCTOR_LINES = 60
ONE_CLASS = 0.75
"""Share of a module's lines from which on it is one class."""

CORE = "core"
"""The replicated commit log: all of `dledger/` that belongs to no other part."""
LEAVES = ("runtime", "formats")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "runtime": (),
    "formats": (),
    "_fast": LEAVES,
    "local": LEAVES,
    CORE: ("_fast", *LEAVES),
    "remoting": LEAVES,
    "namesrv": ("remoting", "web", *LEAVES),
    "client": ("remoting", "_fast", *LEAVES),
    "audit": LEAVES,
    "broker": (CORE, "remoting", "audit", "web", "_fast", *LEAVES),
    "admin": ("client", "remoting", *LEAVES),
    "web": LEAVES,
    "dashboard": ("admin", "client", "remoting", "web", "local", *LEAVES),
    "spark": ("audit", "client", *LEAVES),
    "lake": ("spark", "audit", "client", "local", *LEAVES),
    "chaos": ("*",),
    "bench": ("*",),
    "commands": ("*",),
}
"""Which parts each part may import besides itself; "*": any. Nothing imports chaos, bench or commands."""
OTHER_PARTS = tuple(part for part in MAY_IMPORT if part != CORE)
"""Folders of `dledger/` that are parts of their own."""
LINKED = ("broker", "chaos", "client", "namesrv", "spark")
"""Parts that have a symbolic link at the top of the repository."""

PURE = (
    "dledger/election/*", "dledger/replication/*", "dledger/messages.py", "dledger/errors.py",
    "dledger/host.py", "dledger/formats/*", "dledger/runtime/settings.py",
)  # fmt: skip
PURE_LIBRARY = (
    "__future__", "array", "base64", "binascii", "collections", "contextlib", "dataclasses", "difflib",
    "enum", "errno", "ipaddress",
    "functools", "hashlib", "heapq", "itertools", "json", "math", "msgpack", "msgspec", "re", "struct",
    "types", "typing", "zlib", "zlib_ng",
)  # fmt: skip
"""All that a pure part may import of what is not ours: nothing there knows time, chance, files or others."""

DOORS = (
    "time", "random", "uuid", "threading", "socket", "secrets", "subprocess", "multiprocessing", "concurrent",
    "select", "selectors", "tempfile", "shutil", "mmap", "fcntl",
)  # fmt: skip
"""Modules that only dledger/runtime/ may touch: what they offer comes through `Env`."""
DOOR_CALLS = {
    "open": "open() goes around env.files",
    "asyncio.to_thread": "threads belong to env.workers",
    "asyncio.open_connection": "streams: use create_connection with a Protocol",
    "asyncio.start_server": "streams: use create_server with a Protocol",
    "datetime.now": "the clock is env.wall",
    "datetime.utcnow": "the clock is env.wall",
    "datetime.datetime.now": "the clock is env.wall",
    "date.today": "the clock is env.wall",
    "sys.exit": "only the outer shell ends the process",
}
DOOR_METHODS = {
    "read_text": "files go through env.files",
    "write_text": "files go through env.files",
    "read_bytes": "files go through env.files",
    "write_bytes": "files go through env.files",
    "run_in_executor": "threads belong to env.workers",
}

# Outside the simulator by nature: path pattern -> why the doors may be used directly.
OUTSIDE: dict[str, str] = {
    "dledger/runtime/*": "is the doors",
    "*/__main__.py": "outer shell: owns argv, signals, environment and logging set-up",
    "dledger/commands/*": "outer shell: the command line",
    "dledger/local/*": "drives real processes",
    "dledger/audit/arguments.py": "outer shell",
    "dledger/spark/commands/program.py": "outer shell",
    "*/cli.py": "outer shell: owns argv, signals, environment and logging set-up",
    "dledger/chaos/scenarios/command.py": "outer shell",
    "dledger/audit/crash.py": "outer shell: how a process ends whose libraries may be missing",
    "dledger/chaos/stores.py": "reads the files of real processes",
    "dledger/chaos/failover.py": "drives real processes",
    "dledger/dashboard/program.py": "outer shell",
    "dledger/dashboard/server.py": "reads files of its own package",
    "dledger/dashboard/wording.py": "reads files of its own package",
    "dledger/chaos/line_process.py": "drives real processes",
    "dledger/chaos/trials/*": "drives real processes",
    "dledger/chaos/flight_replay.py": "outer shell",
    "dledger/chaos/replacement.py": "drives real processes",
    "dledger/chaos/failover_clock.py": "a process of its own, with blocking sockets: the clock of failovers",
    "dledger/bench/audit.py": "measures real processes",
    "dledger/bench/big_store.py": "writes stores as they lie on a disk, at speed",
    "dledger/bench/core.py": "measures pure code with the machine's clock",
    "dledger/bench/idle.py": "measures real processes",
    "dledger/bench/compare/*": "starts and measures real processes of other systems",
    "dledger/bench/lake.py": "measures with the machine's clock, and real processes",
    "dledger/bench/loaded.py": "measures real processes",
    "dledger/bench/spark_plans.py": "writes files as they lie on a disk, and measures",
    "dledger/bench/restart.py": "measures real processes",
    "dledger/bench/scale.py": "measures real processes",
    "dledger/bench/clients.py": "measures real processes",
    "dledger/bench/memory.py": "measures real processes",
    "dledger/bench/spark_audit.py": "measures real processes",
    "dledger/bench/spark_read.py": "measures real processes",
    "dledger/bench/spark_write.py": "measures real processes",
    "dledger/bench/timers.py": "measures real processes",
    "dledger/bench/topics.py": "measures with the machine's clock, against real processes",
    "dledger/chaos/machine/*": "is the other side of the doors: simulates them",
    "dledger/chaos/mutants/*": "runs test suites on copies of the tree",
    "dledger/chaos/scenarios/plan.py": "draws plans from seeds, outside of every world",
    "dledger/spark/java.py": "finds or prepares a Java runtime for Spark: the machine, not our processes",
    "dledger/spark/session.py": "sets up Spark's environment and log file",
    "dledger/spark/packages.py": "zips our packages for executors into the cache",
    "dledger/spark/doctor/*": "looks at the machine: Java, Python, memory, disk",
}
# path pattern -> why it may import any part.
FACES: dict[str, str] = {
    "dledger/__init__.py": "offers the names of the client, imported when used",
    "dledger/__main__.py": "is the command",
}
# path pattern -> why a blanket `except` is right there.
BLANKET_EXCEPT: dict[str, str] = {
    "dledger/chaos/machine/*": "an event loop hands it to the exception handler, as asyncio does",
    "dledger/client/consuming/allocation.py": "a strategy that fails is a ClientError, and is tried again",
    "dledger/client/consuming/consume_hooks.py": "a hook that fails is logged: its message is consumed",
    "dledger/client/consuming/listener_calls.py": "what a listener raises fails its message",
    "dledger/client/producing/producer.py": "its callback is called with the error; other messages go on",
    "dledger/client/producing/queue_selection.py": "a selector that fails is the error of its message",
    "dledger/client/producing/send_hooks.py": "a hook that fails is logged: its message is sent",
    "dledger/client/producing/send_kernel.py": "a callback that fails is logged: other messages go on",
    "dledger/node/node.py": "whatever its tasks raise is raised as NodeFailed (rule 7)",
    "dledger/log/flushing.py": "callbacks have no caller: what they raise is raised by the flusher (rule 7)",
    "dledger/peers/replicator.py": "callbacks have no caller: what they raise ends the node (rule 7)",
    "dledger/context/elections.py": "callbacks have no caller: what they raise ends the node (rule 7)",
    "dledger/broker/audit/audit_jobs.py": "the boundary of one scan: answered with code 1 and logged (S29)",
    "dledger/broker/audit/shipping.py": "the boundary of one round: logged and tried again",
    "dledger/node/leadership.py": "the pump is a loop callback: the same",
    "dledger/peers/peers.py": "the same for the callbacks of peer connections",
    "dledger/runtime/remote_files.py": "drivers raise what they like: an OSError behind the door",
    "dledger/runtime/workers.py": "what a job raises is the result of its future, as in concurrent.futures",
    "dledger/remoting/client.py": "the boundary of one request: other callbacks go on",
    "dledger/remoting/connection.py": "the same for an answer to a request of ours: counted and logged",
    "dledger/remoting/server.py": "the boundary of one request: answered with code 1 (safety.md S29)",
    "dledger/client/producing/transaction_producer.py": "what its listener raises counts as UNKNOWN",
}
# path pattern -> why `sleep(0)` does not spin there.
YIELDS: dict[str, str] = {
    "dledger/context/applier.py": "works one step a turn; ends when the range is applied",
    "dledger/commands/messages/input.py": "once for each piece of a file; ends with the file",
}
# path pattern -> why a task without a TaskGroup, `id()`/`hash()` or iteration of a set is right there.
LOOSE_TASKS: dict[str, str] = {
    "dledger/chaos/machine/*": "implements the event loop that makes tasks",
    "dledger/chaos/scenarios/faults.py": "an operator's call comes from outside of all tasks of the node",
    "dledger/client/lifecycle.py": "a client without a block lives in a task that its close() waits for",
}
IDENTITY: dict[str, str] = {"dledger/chaos/machine/*": "implements hashing of tasks by number"}
LONG_MODULES: dict[str, str] = {}
LONG_CONSTRUCTORS: dict[str, str] = {}

BANNED_NAMES = ("utils", "helpers", "common", "util", "helper", "misc")
MUTABLE_CALLS = ("list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict", "bytearray")
MUTATORS = (
    "append",
    "add",
    "update",
    "pop",
    "clear",
    "extend",
    "insert",
    "remove",
    "setdefault",
    "popitem",
    "discard",
)


@dataclass(frozen=True)
class Finding:
    """One broken rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def allowed(path: str, table: dict[str, str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in table)


def check_module(path: str, source: str) -> list[Finding]:
    """All findings in one module; `path` is relative to the repository, with forward slashes."""
    tree = ast.parse(source, path)
    found = [*check_shape(path, source, tree), *check_imports(path, tree)]
    for rule in (check_doors, check_excepts, check_tasks, check_identity, check_sets, check_module_state):
        found.extend(rule(path, tree))
    return found


def check_shape(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    lines = source.count("\n")
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    longest = max((node.end_lineno or 0) - node.lineno + 1 for node in classes) if classes else 0
    limit = MAX_CLASS_LINES if longest >= ONE_CLASS * lines else MAX_MODULE_LINES
    if lines > limit and not allowed(path, LONG_MODULES):
        yield Finding(path, lines, "size", f"{lines} lines: at most {limit}, better 400")
    for node in nodes_of(tree):
        if (
            isinstance(node, ast.FunctionDef)
            and node.name == "__init__"
            and not allowed(path, LONG_CONSTRUCTORS)
        ):
            size = (node.end_lineno or 0) - node.lineno + 1
            if size > MAX_CONSTRUCTOR_LINES:
                limit = f"{size} lines: at most {MAX_CONSTRUCTOR_LINES}, make parts in methods"
                yield Finding(path, node.lineno, "constructor", limit)
    for part in path.removesuffix(".py").split("/"):
        if part in BANNED_NAMES:
            yield Finding(path, 1, "name", f"{part!r} says nothing; name it after what it does")


@lru_cache(maxsize=1)
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """All rules look at the same: walking takes most of the time."""
    return list(ast.walk(tree))


def imported_modules(path: str, tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    package = path.split("/")[:-1]
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield node, ".".join([*base, *([node.module] if node.module else [])])


def type_only(tree: ast.Module) -> list[ast.AST]:
    """Statements under `if TYPE_CHECKING:`: they name types and never run."""
    return [
        inner
        for node in nodes_of(tree)
        if isinstance(node, ast.If) and dotted(node.test).split(".")[-1] == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    ]


def check_imports(path: str, tree: ast.Module) -> Iterator[Finding]:
    package = part_of(path)
    pure = any(fnmatch(path, pattern) for pattern in PURE)
    outside = allowed(path, OUTSIDE)
    may = MAY_IMPORT[package]
    types = type_only(tree)
    for node, name in imported_modules(path, tree):
        line, top = node.lineno, name.split(".")[0]
        if top in OTHER_PARTS:
            yield Finding(path, line, "copy", f"import {name}: a second copy of dledger.{name}")
        for part in parts_of(node, name):
            if part != package and "*" not in may and part not in may and not allowed(path, FACES):
                yield Finding(path, line, "layer", f"{package} may not import {part}")
        if node in types:
            continue
        if pure and not is_pure(name):
            yield Finding(path, line, "pure", f"a pure part may not import {name}")
        elif top in DOORS and not outside:
            yield Finding(path, line, "door", f"import {top}: only dledger/runtime/ may, use Env")


def part_of(path: str) -> str:
    """The part that a module belongs to."""
    folder = path.split("/")[1]
    return folder if folder in OTHER_PARTS else CORE


def parts_of(node: ast.stmt, name: str) -> Iterator[str]:
    """Which part is imported: `dledger.broker.x` belongs to `broker`, `dledger.node.node` to the core."""
    top, _, rest = name.partition(".")
    if top != "dledger":
        return
    names = [rest]
    if isinstance(node, ast.ImportFrom) and not rest:
        names = [alias.name for alias in node.names if alias.name[0].islower()]
    for one in names:
        part = one.split(".")[0]
        yield part if part in OTHER_PARTS else CORE


def is_pure(module: str) -> bool:
    """Whether a pure part may import it: a module of the list, or a pure part of ours."""
    files = (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py")
    return module.split(".")[0] in PURE_LIBRARY or any(
        fnmatch(file, pattern) for file in files for pattern in PURE
    )


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute chain, else the empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def check_doors(path: str, tree: ast.Module) -> Iterator[Finding]:
    if allowed(path, OUTSIDE):
        return
    for node in nodes_of(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in DOOR_CALLS:
                yield Finding(path, node.lineno, "door", f"{name}(): {DOOR_CALLS[name]}")
            elif isinstance(node.func, ast.Attribute) and node.func.attr in DOOR_METHODS:
                yield Finding(
                    path, node.lineno, "door", f".{node.func.attr}(): {DOOR_METHODS[node.func.attr]}"
                )
        elif isinstance(node, ast.Attribute) and dotted(node).startswith("os."):
            if not dotted(node).startswith("os.path") and isinstance(node.value, ast.Name):
                yield Finding(path, node.lineno, "door", f"{dotted(node)}: only os.path outside runtime/")
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield Finding(path, node.lineno, "door", "from os import: only os.path outside runtime/")


def check_excepts(path: str, tree: ast.Module) -> Iterator[Finding]:
    if allowed(path, BLANKET_EXCEPT):
        return
    for node in nodes_of(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        blanket = any(kind is None or dotted(kind) in ("Exception", "BaseException") for kind in kinds)
        raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if blanket and not raises_again:
            yield Finding(path, node.lineno, "except", "blanket except swallows errors it does not know")


def check_tasks(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Tasks belong to a TaskGroup and have a name; nobody spins, nothing hides in `__del__`."""
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__del__" and not allowed(path, LOOSE_TASKS):
            yield Finding(path, node.lineno, "task", "__del__ runs at a time nobody knows")
        if not isinstance(node, ast.Call) or allowed(path, LOOSE_TASKS):
            continue
        name = dotted(node.func)
        if name.split(".")[-1] == "ensure_future" or (
            name.endswith("create_task") and name.split(".")[-2:-1] in (["asyncio"], ["loop"], ["_loop"])
        ):
            yield Finding(path, node.lineno, "task", f"{name}(): tasks belong to a TaskGroup")
        elif name.endswith(".create_task") and not any(word.arg == "name" for word in node.keywords):
            yield Finding(path, node.lineno, "task", "a task without a name")
        elif (
            name == "asyncio.sleep"
            and node.args
            and getattr(node.args[0], "value", None) == 0
            and not allowed(path, YIELDS)
        ):
            yield Finding(path, node.lineno, "task", "sleep(0) spins")


def check_identity(path: str, tree: ast.Module) -> Iterator[Finding]:
    if allowed(path, IDENTITY):
        return
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("id", "hash"):
            yield Finding(path, node.lineno, "identity", f"{node.func.id}() differs from run to run")


def is_set(node: ast.expr | None, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call):
        return dotted(node.func) in ("set", "frozenset")
    return isinstance(node, ast.Name | ast.Attribute) and dotted(node) in names


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module, class or function, without those of the classes and functions in it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def named_as_set(annotation: ast.expr | None) -> bool:
    """Whether an annotation says that something is a set."""
    return annotation is not None and ast.unparse(annotation).split("[")[0] in (
        "set",
        "frozenset",
        "AbstractSet",
    )


def set_names(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """Names and attributes to which these statements assign sets, and those to which they assign others.

    A name to which both are assigned is in both.
    """
    names: set[str] = set()
    other: set[str] = set()
    for node in nodes:
        targets: list[ast.expr] = []
        kind = False
        if isinstance(node, ast.AnnAssign):
            targets, kind = [node.target], named_as_set(node.annotation)
        elif isinstance(node, ast.Assign):
            targets, kind = node.targets, is_set(node.value, frozenset())
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            targets = [node.target]
        elif isinstance(node, ast.arg):
            (names if named_as_set(node.annotation) else other).add(node.arg)
        (names if kind else other).update(filter(None, map(dotted, targets)))
    return names, other


def attributes_of(scope: ast.ClassDef) -> frozenset[str]:
    """The attributes `self.x` of a class that are sets, by what its body and all its methods assign."""
    names, other = set_names(own_nodes(scope))
    names, other = {f"self.{name}" for name in names}, {f"self.{name}" for name in other}
    inside, others = set_names(ast.walk(scope))
    names |= {name for name in inside if name.startswith("self.")}
    other |= {name for name in others if name.startswith("self.")}
    return frozenset(names - other)


def check_sets(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Nothing iterates over a set. Names are judged by function: another may use the same name for a list."""
    if not allowed(path, IDENTITY):
        yield from _check_scope(path, tree, frozenset())


def _check_scope(path: str, scope: ast.AST, known: frozenset[str]) -> Iterator[Finding]:
    nodes = list(own_nodes(scope))
    if isinstance(scope, ast.ClassDef):
        inner = known | attributes_of(scope)
    else:
        parameters = ast.walk(scope.args) if isinstance(scope, FUNCTIONS) else ()
        names, other = set_names([*parameters, *nodes])
        other = {name for name in other if not name.startswith("self.")}
        known = inner = frozenset((known - other) | (names - other))
    orderless = [part for node in nodes for part in without_order(node)]
    for node in nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield from _check_scope(path, node, inner)
        over = [] if node in orderless else iterated(node)
        over += [part for part in over for part in _copies(part)]
        if any(is_set(part, known) for part in over):
            line = getattr(node, "lineno", over[0].lineno)
            yield Finding(path, line, "set", "the order of a set is chance: sort it")


def without_order(node: ast.AST) -> list[ast.comprehension]:
    """Loops whose result is the same in any order: those of a set, and those that `all` and the like take."""
    if isinstance(node, ast.SetComp):
        return node.generators
    takes = ("all", "any", "set", "frozenset", "sorted", "min", "max")
    if isinstance(node, ast.Call) and dotted(node.func) in takes:
        return [part for one in node.args if isinstance(one, ast.GeneratorExp) for part in one.generators]
    return []


def iterated(node: ast.AST) -> list[ast.expr]:
    """What a loop, a comprehension, a conversion or a star iterates over."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        return [node.iter]
    if isinstance(node, ast.Call) and dotted(node.func) in ("list", "tuple", "enumerate", "iter", "next"):
        return node.args[:1]
    return [node.value] if isinstance(node, ast.Starred) else []


def _copies(node: ast.expr) -> list[ast.expr]:
    """What `list(x)`, `tuple(x)` or `x.copy()` iterate over in the end."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "copy":
        return [node.func.value]
    return []


def is_mutable(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Call):
        return dotted(node.func).split(".")[-1] in MUTABLE_CALLS
    return isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def check_module_state(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Three brokers share one interpreter in the simulator: what changes hangs off an object."""
    constants: list[str] = []
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not is_mutable(node.value):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            name = dotted(target)
            if name == "__all__":
                continue
            constants.append(name)
            if name != name.upper():
                yield Finding(
                    path, node.lineno, "state", f"module-level container {name!r}: not a constant by its name"
                )
    for node in nodes_of(tree):
        if isinstance(node, ast.Global):
            yield Finding(path, node.lineno, "state", f"global {', '.join(node.names)}")
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS
        ):
            if dotted(node.func.value) in constants:
                yield Finding(
                    path, node.lineno, "state", f"{dotted(node.func.value)} is changed after import"
                )
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store | ast.Del)
            and dotted(node.value) in constants
        ):
            yield Finding(path, node.lineno, "state", f"{dotted(node.value)} is changed after import")


# --- the repository ---------------------------------------------------------------------------------


def our_modules() -> list[Path]:
    return sorted((ROOT / "dledger").rglob("*.py"))


def test_every_module_keeps_the_rules() -> None:
    modules = our_modules()
    assert modules, "no module found: the test looks in the wrong place"
    found = [
        finding
        for module in modules
        for finding in check_module(module.relative_to(ROOT).as_posix(), module.read_text())
    ]
    assert not found, "\n" + "\n".join(map(str, found))


def test_every_exception_from_a_rule_is_still_needed() -> None:
    """An allow-list entry that names a file must name one that exists."""
    for table in (
        OUTSIDE,
        FACES,
        BLANKET_EXCEPT,
        YIELDS,
        LOOSE_TASKS,
        IDENTITY,
        LONG_MODULES,
        LONG_CONSTRUCTORS,
        UNCLEAR_ALLOWED,
    ):
        for pattern, reason in table.items():
            assert reason
            if "*" not in pattern:
                assert (ROOT / pattern).exists(), pattern


def test_every_part_is_found_by_its_one_name() -> None:
    """`dledger` is installed and type-checked. It holds real directories; links lie at the top only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == ["dledger*", "pyspark_dledger"]
    assert project["tool"]["mypy"]["packages"] == ["dledger"]
    assert [path for path in (ROOT / "dledger").rglob("*") if path.is_symlink()] == []
    links = {path.name: path.readlink().as_posix() for path in ROOT.iterdir() if path.is_symlink()}
    assert {name: links.get(name) for name in LINKED} == {name: f"dledger/{name}" for name in LINKED}


def test_an_incomplete_source_tree_is_not_built(tmp_path: Path) -> None:
    """setuptools leaves out a package that is not there, and ends with exit code 0."""
    folders = {path.parent.name for path in (ROOT / "dledger").glob("*/__init__.py")}
    known = re.search(r"PARTS = \((.*?)\)", (ROOT / "setup.py").read_text(), re.S)
    assert known and set(re.findall(r"\w+", known[1])) == folders, "PARTS of setup.py"
    sources = (ROOT / "MANIFEST.in").read_text()
    assert all(path.relative_to(ROOT).as_posix() in sources for path in (ROOT / "dledger").rglob("*.pyx"))
    (tmp_path / "setup.py").write_text((ROOT / "setup.py").read_text())
    for folder in folders - {"client"}:
        (tmp_path / "dledger" / folder).mkdir(parents=True)
        (tmp_path / "dledger" / folder / "__init__.py").touch()
    command = [sys.executable, "setup.py", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "incomplete: dledger/client missing" in done.stderr, done.stderr


def test_nothing_looks_for_the_parts_as_packages_of_their_own() -> None:
    """Neither tests nor scripts: two copies of one module have two of each class."""
    texts = [path for folder in ("tests", "scripts") for path in (ROOT / folder).rglob("*.py")]
    parts = "|".join(OTHER_PARTS)
    second = re.compile(
        rf"^\s*(from|import) ({parts})\b|\"-m\", \"({parts})\b|python -m ({parts})\b"
        rf"|setattr\(\s*\"({parts})\.",
        re.M,
    )
    for path in sorted(texts):
        if path != Path(__file__):
            found = second.search(path.read_text())
            assert not found, f"{path.relative_to(ROOT)}: {found and found[0]}"


def named_modules(source: str) -> list[str]:
    """With which names the bullets of a docstring begin: "* `a`, `b/`   what they are"."""
    text = ast.get_docstring(ast.parse(source)) or ""
    heads = re.findall(r"^\* ((?:`[^`]+`(?:, )?)+)", text, re.M)
    return [name.rstrip("/") for head in heads for name in re.findall(r"`([^`]+)`", head)]


def test_a_package_lists_modules_that_are_there() -> None:
    assert named_modules('"""A.\n\n* `a`, `b/`   c; `d`\n* `e`: f\n`g`\n* h `i`\n"""') == ["a", "b", "e"]
    for module in our_modules():
        if module.name == "__init__.py":
            for name in named_modules(module.read_text()):
                there = [module.with_name(f"{name}.py"), module.with_name(name) / "__init__.py"]
                assert any(path.exists() for path in there), f"{module.relative_to(ROOT)} lists {name}"


def mentioned(text: str) -> list[str]:
    """What a text says of the tree: dotted names in backticks, and paths of files."""
    dotted_names = re.findall(r"`(dledger(?:\.\w+)+)(?:\(\))?`", text)
    paths = re.findall(
        r"(?<![\w/.])((?:dledger|tests|scripts|docs)/[\w/.-]*\w\.(?:pyx|py|md|sh|toml))\b", text
    )
    return [*dotted_names, *paths]


def exists(mention: str) -> bool:
    """A path of a file; or a module, and names that occur in it."""
    if "/" in mention:
        return (ROOT / mention).exists()
    parts = mention.split(".")
    for size in range(len(parts), 0, -1):
        folder = ROOT.joinpath(*parts[:size])
        for module in (folder.with_suffix(".py"), folder / "__init__.py"):
            if module.exists():
                source = module.read_text()
                return all(re.search(rf"\b{name}\b", source) for name in parts[size:])
    return False


def test_what_is_said_of_the_tree_is_true() -> None:
    """Modules, functions and files that docstrings, comments and pages name are there."""
    assert mentioned("`dledger.broker.x`, `dledger.main()`, see tests/a.py.") == [
        "dledger.broker.x",
        "dledger.main",
        "tests/a.py",
    ]
    assert exists("dledger.broker.app.main") and not exists("dledger.broker.nothing.main")
    assert exists("dledger.election") and not exists("dledger/broker/client/clients.py")
    texts = [*our_modules(), *ROOT.glob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    texts += [
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "scripts").glob("*"),
        *(ROOT / "dledger").rglob("*.pyx"),
    ]
    wrong = [
        f"{path.relative_to(ROOT)} names {name}"
        for path in sorted(texts)
        if path.is_file() and path != Path(__file__) and "__pycache__" not in path.parts
        for name in mentioned(path.read_text())
        if not exists(name)
    ]
    assert not wrong, "\n" + "\n".join(wrong)


PRIVATE = re.compile(r"^(Of |And |The same\b)|none any more")
"""How docstrings begin that continue the name above them, and words that are hard to read (the page
docs/internals/style.md)."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text: of modules, classes and functions, and below the names of constants and fields."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for place, statement in enumerate(body):
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                above = body[place - 1] if place else node
                if isinstance(
                    above,
                    ast.Module
                    | ast.ClassDef
                    | ast.FunctionDef
                    | ast.AsyncFunctionDef
                    | ast.Assign
                    | ast.AnnAssign,
                ):
                    yield statement.lineno, value.value


def test_docstrings_stand_on_their_own() -> None:
    source = 'A = 1\n"""Of all."""\ndef f():\n    """It is none any more."""\nB = 2\n"""How many."""\n'
    assert [line for line, text in docstrings(ast.parse(source)) if PRIVATE.search(text)] == [2, 4]
    found = [
        f"{module.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for module in our_modules()
        for line, text in docstrings(ast.parse(module.read_text()))
        if PRIVATE.search(text)
    ]
    assert not found, (
        "these docstrings continue the name above them: write sentences that stand on their own "
        "(docs/internals/style.md)\n" + "\n".join(found)
    )


def test_every_folder_with_modules_is_a_package() -> None:
    for module in our_modules():
        assert (module.parent / "__init__.py").exists(), f"{module.parent} has no __init__.py"


def test_every_test_module_has_a_name_of_its_own() -> None:
    """pytest imports test modules by their bare names."""
    seen: dict[str, Path] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name != "conftest.py":
            assert path.name not in seen, f"{path} and {seen[path.name]}"
            seen[path.name] = path


UNCLEAR = re.compile(
    r"\b(rotten|nobody|whoever|mended|under way|giv(e|es|en|ing) up|any more|is none|but for)\b",
    re.IGNORECASE,
)
"""Private words that a stranger reads twice, in texts that users see (the page docs/internals/style.md)."""
UNCLEAR_ALLOWED: dict[str, str] = {
    "dledger/chaos/*": "judges and marks of the simulator are read by people who know the code",
    "dledger/bench/compare/load.py": "names of loads are in published results",
}


def shown_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each text in a module that is not a docstring and has more than one word."""
    below = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in below:
            continue
        if isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def test_texts_for_users_use_the_words_of_the_field() -> None:
    source = '"""Nobody."""\ndef f(x):\n    """Given up."""\n    raise E(f"entry {x} is rotten")\n'
    assert [line for line, text in shown_texts(ast.parse(source)) if UNCLEAR.search(text)] == [4]
    found = [
        f"{module.relative_to(ROOT)}:{line}: write {text!r} with a word of docs/internals/style.md"
        for module in our_modules()
        if not allowed(str(module.relative_to(ROOT)), UNCLEAR_ALLOWED)
        for line, text in shown_texts(ast.parse(module.read_text()))
        if UNCLEAR.search(text)
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_file_names_a_machine_or_a_registry() -> None:
    words = [
        "/" + "root/",
        "/" + "work/",
        "pypi" + ".org",
        "npmjs" + ".org",
        "npmjs" + ".com",
        "pythonhosted" + ".org",
    ]
    texts = [*our_modules(), *ROOT.glob("*.md"), *ROOT.glob("*.toml")]
    for folder in ("docs", "scripts", "tests", ".ci"):
        texts += [
            path
            for path in (ROOT / folder).rglob("*")
            if path.is_file()
            and path.suffix in (".py", ".md", ".sh", ".js", ".txt", "")
            and "node_modules" not in path.parts
        ]
    for path in sorted(texts):
        text = path.read_text()
        for word in words:
            assert word not in text, f"{path.relative_to(ROOT)} mentions {word}"


def test_every_test_that_a_page_names_is_there() -> None:
    """`test_x` in a page is a module of tests/ or a function in one; `test_x_*` several."""
    known: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        known |= {path.stem, *re.findall(r"def (test_\w+)", path.read_text())}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for name in re.findall(r"(?<!\.)\btest_\w+\*?", page.read_text()):
            there = name in known or ("*" in name and any(fnmatch(one, name) for one in known))
            assert there, f"{page.relative_to(ROOT)} names {name}"


# --- the checker itself -----------------------------------------------------------------------------

BAD = [
    ("layer", "dledger/client/a.py", "from dledger.broker.app import App"),
    ("layer", "dledger/formats/a.py", "import dledger.runtime.env"),
    ("layer", "dledger/a.py", "from dledger.remoting import frames"),
    ("layer", "dledger/client/a.py", "from dledger import broker"),
    ("copy", "dledger/broker/a.py", "from broker.app import App"),
    ("copy", "dledger/chaos/a.py", "import client.sync"),
    ("layer", "dledger/spark/a.py", "import dledger.local.cluster"),
    ("pure", "dledger/election/core.py", "import asyncio"),
    ("pure", "dledger/replication/push.py", "from os import path"),
    ("pure", "dledger/formats/entry.py", "import time"),
    ("pure", "dledger/election/votes.py", "from datetime import datetime"),
    ("pure", "dledger/election/votes.py", "from dledger.node.node import Node"),
    ("pure", "dledger/replication/leader.py", "def f():\n    import sys"),
    ("pure", "dledger/formats/entry.py", "import mystery"),
    ("door", "dledger/broker/a.py", "import time"),
    ("door", "dledger/client/a.py", "from random import choice"),
    ("door", "dledger/audit/a.py", "def f(p):\n    return open(p)"),
    ("door", "dledger/broker/a.py", "import os\nx = os.environ['A']"),
    ("door", "dledger/broker/a.py", "from pathlib import Path\ntext = Path('x').read_text()"),
    ("door", "dledger/namesrv/a.py", "import asyncio\nasync def f():\n  await asyncio.open_connection('h')"),
    ("door", "dledger/node/node.py", "async def f(loop):\n    await loop.run_in_executor(None, f)"),
    ("size", "dledger/broker/a.py", "x = 1\n" * (MAX_MODULE_LINES + 1)),
    ("size", "dledger/broker/a.py", "class A:\n" + "    x = 1\n" * MAX_CLASS_LINES),
    ("size", "dledger/broker/a.py", ("class A:\n" + "    x = 1\n" * 400) * 2),
    ("size", "dledger/broker/a.py", "x = 1\n" * 300 + "class A:\n" + "    x = 1\n" * 400),
    ("constructor", "dledger/broker/a.py", "class A:\n  def __init__(self):\n" + "    x = 1\n" * 60),
    ("name", "dledger/broker/utils.py", ""),
    ("name", "dledger/broker/common/a.py", ""),
    ("except", "dledger/broker/a.py", "try:\n    f()\nexcept:\n    pass"),
    ("except", "dledger/broker/a.py", "try:\n    f()\nexcept Exception as e:\n    print(e)"),
    ("except", "dledger/broker/a.py", "try:\n    f()\nexcept (OSError, BaseException):\n    x = 1"),
    ("task", "dledger/broker/a.py", "import asyncio\nasync def f():\n    asyncio.create_task(f())"),
    ("task", "dledger/broker/a.py", "async def f(loop):\n    loop.create_task(f(loop))"),
    ("task", "dledger/broker/a.py", "async def f(group):\n    group.create_task(f(group))"),
    ("task", "dledger/broker/a.py", "import asyncio\nasync def f():\n    await asyncio.sleep(0)"),
    ("task", "dledger/broker/a.py", "class A:\n    def __del__(self):\n        pass"),
    ("identity", "dledger/broker/a.py", "def f(x):\n    return id(x)"),
    ("set", "dledger/broker/a.py", "for x in {1, 2}:\n    f(x)"),
    ("set", "dledger/broker/a.py", "y = [x for x in set(z)]"),
    ("set", "dledger/broker/a.py", "y = sum(x for x in set(z))"),
    ("set", "dledger/broker/a.py", "class A:\n    def __init__(self):\n        self.s: set[str] = set()\n"
                           "    def f(self):\n        for x in self.s:\n            g(x)"),
    ("set", "dledger/broker/a.py", "def f(a):\n    s = set(a)\n    return list(s)"),
    ("set", "dledger/broker/a.py", "def f(a):\n    s = set(a)\n    for x in s.copy():\n        g(x)"),
    ("set", "dledger/broker/a.py", "def f(a):\n    s = set(a)\n    return list(s)\ndef g(a):\n    s = [a]"),
    ("set", "dledger/broker/a.py", "def f(s: set[str]):\n    return tuple(s)"),
    ("set", "dledger/broker/a.py", "def f(a):\n    s = set(a)\n    def g():\n        return list(s)"),
    ("set", "dledger/broker/a.py", "class A:\n    s: set[str]\n    def f(self):\n        return [*self.s]"),
    ("set", "dledger/broker/a.py", "class A:\n    def __init__(self):\n        self.s = set()\n"
                           "    def f(self):\n        return list(self.s)\n"
                           "class B:\n    def __init__(self):\n        self.s = []"),
    ("state", "dledger/broker/a.py", "cache = {}"),
    ("state", "dledger/broker/a.py", "import collections\nseen: object = collections.deque()"),
    ("state", "dledger/broker/a.py", "TABLE = {}\ndef f(x):\n    TABLE[x] = 1"),
    ("state", "dledger/broker/a.py", "TABLE = []\ndef f(x):\n    TABLE.append(x)"),
    ("state", "dledger/broker/a.py", "n = 0\ndef f():\n    global n\n    n = 1"),
]  # fmt: skip

GOOD = [
    ("dledger/client/a.py", "from dledger.remoting.frames import x\nfrom dledger.formats import entry"),
    ("dledger/client/a.py", "import dledger.client.route"),
    ("dledger/client/inner/a.py", "from ..route import x\nfrom . import y"),
    ("dledger/chaos/a.py", "import dledger.broker.app\nimport dledger.node.node"),
    ("dledger/election/a.py", "from dledger.replication import LogView\nimport dledger.errors\nimport json"),
    ("dledger/runtime/env.py", "import time, random, os\nx = open('y')"),
    ("dledger/broker/__main__.py", "import os, time\nx = os.environ"),
    ("dledger/broker/a.py", "import os\nx = os.path.join('a', 'b')"),
    ("dledger/broker/a.py", "x = 1\n" * 100 + "class A:\n" + "    x = 1\n" * (MAX_CLASS_LINES - 101)),
    ("dledger/broker/a.py", "try:\n    f()\nexcept OSError:\n    g()\nexcept Exception:\n    g()\n    raise"),
    ("dledger/broker/a.py", "async def f(group):\n    group.create_task(f(group), name='x')"),
    ("dledger/broker/a.py", "import asyncio\nasync def f():\n    await asyncio.sleep(1)"),
    ("dledger/broker/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random"),
    ("dledger/broker/a.py", "def f(s: set[str]):\n    return all(x for x in s), {x for x in s}"),
    ("dledger/broker/a.py", "for x in sorted({1, 2}):\n    f(x)\nok = 1 in {1, 2}"),
    ("dledger/broker/a.py", "def f(a):\n    s = set(a)\n    return sorted(s), len(s)"),
    ("dledger/broker/a.py", "def f(a):\n    s = set(a)\ndef g(s: list[str]):\n    return tuple(s)"),
    ("dledger/broker/a.py", "def f(a):\n    s = set(a)\ndef g(a):\n    for s in a:\n        list(s)"),
    ("dledger/broker/a.py", "class A:\n    def __init__(self):\n        self.s = set()\n"
                            "class B:\n    def __init__(self):\n        self.s = []\n"
                            "    def f(self):\n        return list(self.s)"),
    ("dledger/broker/a.py", "CODES = {1: 'a'}\n__all__ = ['f']\nnames = ('a', 'b')"),
    ("dledger/broker/a.py", "CODES = {1: 'a'}\ndef f(x):\n    local = {}\n    local[x] = CODES[1]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "path", "source"), BAD, ids=[f"{rule}-{n}" for n, (rule, _, _) in enumerate(BAD)]
)
def test_the_checker_finds(rule: str, path: str, source: str) -> None:
    assert rule in [finding.rule for finding in check_module(path, source)]


@pytest.mark.parametrize(("path", "source"), GOOD)
def test_the_checker_lets_pass(path: str, source: str) -> None:
    assert check_module(path, source) == []
