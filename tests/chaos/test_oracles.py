"""Each table of the replicated state has an oracle by hand."""

from __future__ import annotations

from dledger.chaos.scenarios.newer import NOTES, Notes
from dledger.chaos.scenarios.oracle import oracles
from dledger.formats.state import TABLES


def test_every_table_that_operations_change_has_an_oracle() -> None:
    made = [table.make() for table in TABLES]
    wanted = {table.name: table.operations for table in made if table.operations}
    assert {oracle.part: oracle.operations for oracle in oracles()} == wanted


def test_so_has_the_table_of_the_newer_program() -> None:
    assert Notes.part == NOTES.name and Notes.operations == NOTES.operations
