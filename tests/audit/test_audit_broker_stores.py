"""Stores with every file of a broker: each fault is found, with its severity, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.audit.findings import Severity
from tests.audit.broker_faults import BROKER_FAULTS, BrokerFault
from tests.audit.broker_store import BrokerLog, broker_log, write_broker_group
from tests.audit.engine import audit


@pytest.fixture(scope="module")
def log() -> BrokerLog:
    return broker_log()


@pytest.mark.parametrize("fault", BROKER_FAULTS, ids=str)
def test_fault_is_found_and_nothing_else(fault: BrokerFault, log: BrokerLog, tmp_path: Path) -> None:
    stores = write_broker_group(log, tmp_path)
    fault.inject(stores, log)
    report = audit(stores, same_time=fault.same_time)
    found = {each.code for each in report.findings if each.severity > Severity.INFO}
    assert tuple(sorted(found)) == fault.codes, report.ordered()
    assert report.exit_code == fault.exit_code


def test_each_kind_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in BROKER_FAULTS]
    assert len(set(names)) == len(names)
