"""Each table of the replicated state has an oracle that was written by hand."""

from __future__ import annotations

from dledger.chaos.scenarios.newer import NOTES, Notes
from dledger.chaos.scenarios.oracle import oracles
from dledger.formats.state import TABLES


def test_every_table_that_operations_change_has_an_oracle() -> None:
    made = [table.make() for table in TABLES]
    wanted = {table.name: table.operations for table in made if table.operations}
    found = {oracle.part: oracle.operations for oracle in oracles()}
    place = "dledger/chaos/scenarios/oracle/"
    missing, gone = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    assert not missing, (
        f"the table {missing[0]} has no oracle: write one in {place}, and add it to `oracles()`"
    )
    assert not gone, f"the oracle of {gone[0]} in {place} is of no table of the registry: remove it"
    for name, operations in wanted.items():
        assert found[name] == operations, f"the oracle of {name} in {place} does not play the same operations"


def test_so_has_the_table_of_the_newer_program() -> None:
    assert Notes.part == NOTES.name and Notes.operations == NOTES.operations
