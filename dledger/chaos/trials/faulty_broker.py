"""`python -m dledger.chaos.trials.faulty_broker DIRECTORY -c FILE`: the unchanged broker in surroundings that
can be broken (`surroundings`). It is a program of its own; trials start it in place of `dledger broker`."""

from __future__ import annotations

import sys
from pathlib import Path

from dledger.broker.cli import program
from dledger.chaos.trials.surroundings import Surroundings
from dledger.runtime.early_end import end_on_sigterm
from dledger.runtime.env import production_env
from dledger.runtime.options import Options


def main(directory: str, configuration: str) -> int:
    """Run the broker until a signal or a failure. Returns its exit code."""
    end_on_sigterm()
    place = Surroundings(Path(directory))
    options = Options(config=configuration, print=False, important=False, name_servers=None, properties=[])
    with place.used():
        return program(options, place.env(production_env("broker")))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[2] != "-c":
        sys.exit("usage: python -m dledger.chaos.trials.faulty_broker DIRECTORY -c FILE")
    sys.exit(main(sys.argv[1], sys.argv[3]))
