"""A program that fills a table, and stops itself with SIGSTOP between reading a batch and adding its rows.

python stopping_writer.py NAMESRV FORMAT PLACE
"""

from __future__ import annotations

import os
import signal
import sys

from dledger.lake.opening import Place, make_table
from dledger.lake.sources import open_sources
from dledger.lake.tables import About
from dledger.lake.writer import TableWriter


def main(servers: str, kind: str, place: str) -> None:
    """Fill the table once."""
    table = make_table(Place(kind, place, {}), About(("Load",)))
    added, stops = table.add, iter([True])

    def stop_and_add(*given: object) -> None:
        if next(stops, False):
            os.kill(os.getpid(), signal.SIGSTOP)
        added(*given)  # type: ignore[arg-type]

    table.add = stop_and_add  # type: ignore[method-assign]
    with open_sources(table.about.topics, servers) as sources:
        for source in sources:
            TableWriter(table, source.log, source.births_at, batch_bytes=1 << 20).catch_up()


main(*sys.argv[1:])
