"""The audit in several processes says what it says in one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.runtime.processes import ProcessWorkers
from tests.audit.engine import audit
from tests.audit.faults import FAULTS, by_names
from tests.audit.store_builder import Log, sample_log, write_group
from tests.command_line import audit as run


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.fixture
def processes() -> Iterator[ProcessWorkers]:
    workers = ProcessWorkers(2)
    yield workers
    workers.close()


@pytest.mark.slow
def test_the_report_is_that_of_one_process(log: Log, tmp_path: Path, processes: ProcessWorkers) -> None:
    """With every fault there is."""
    for number, fault in enumerate(FAULTS):
        stores = write_group(log, tmp_path / str(number))
        fault.inject(stores, log)
        assert audit(stores, processes=processes) == audit(stores), fault.name


@pytest.mark.parametrize("name", ["nothing", "flipped body byte"])
def test_the_report_is_the_same(name: str, log: Log, tmp_path: Path, processes: ProcessWorkers) -> None:
    stores = write_group(log, tmp_path)
    next(by_names(name)).inject(stores, log)
    ours, theirs = audit(stores, processes=processes), audit(stores)
    assert ours == theirs
    assert bool(ours.findings) == (name != "nothing")


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_jobs_are_a_number_of_processes(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "--jobs", jobs, str(tmp_path)]) == 4
    assert "--jobs" in capsys.readouterr().err
