"""`dledger chaos <command>`: `sim` (simulated groups), `mutants` (who catches them?), and with real
processes `failover` and `replace`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys

COMMANDS = {
    "sim": "dledger.chaos.scenarios.command",
    "mutants": "dledger.chaos.mutants.command",
    "failover": "dledger.chaos.failover",
    "replace": "dledger.chaos.replacement",
}
"""Each module offers `add_parser(subparsers)` and `run(args) -> exit code`."""


def main(argv: list[str]) -> int:
    """Dispatch; only the modules that are there are offered, and only those asked for are imported."""
    parser = argparse.ArgumentParser(prog="dledger chaos", description=__doc__)
    subparsers = parser.add_subparsers(dest="command", required=True)
    wanted = [name for name in COMMANDS if name in argv[:1]] or list(COMMANDS)
    modules = {}
    for name in wanted:
        if _is_there(COMMANDS[name]):
            modules[name] = importlib.import_module(COMMANDS[name])
            modules[name].add_parser(subparsers)
    args = parser.parse_args(argv)
    code: int = modules[args.command].run(args)
    return code


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
