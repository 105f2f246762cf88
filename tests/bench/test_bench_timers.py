"""`dledger bench timers`: many timers of one second, and what a consumer and another producer have of it."""

from __future__ import annotations

import re

import pytest

from dledger.bench.timers import timers


def number(text: object, name: str = "") -> float:
    """The first number behind a word."""
    found = re.search(rf"{name}\D*([0-9.]+)", str(text))
    assert found is not None, text
    return float(found[1])


@pytest.mark.slow
def test_many_timers_of_one_second_come_soon() -> None:
    found = timers(20_000, 0, 1024, 1000)
    print("\n".join(f"{name}: {value}" for name, value in found.items()))
    assert found["errors"] == 0
    for part in ("alone", "beside others"):
        late = [number(found[f"20000 at once, {part}, stored, p{share}"]) for share in ("50", "99", "100")]
        assert 0 <= late[0] <= late[1] <= late[2]
    assert number(found["20000 at once, beside others, handed, p100"]) > 0
    assert number(found["processor time of a message"]) > 0
    assert number(found["others, before"], "of ") > 0 and "p99" in str(found["others, meanwhile"])
