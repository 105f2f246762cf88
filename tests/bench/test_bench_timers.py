"""`dledger bench timers`: many timers of one second, and what a consumer and another producer have of it."""

from __future__ import annotations

import re

import pytest

from dledger._fast import FAST
from dledger.bench.timers import timers
from tests.broker.test_turn_cost import LIMIT_S, limit_s


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
        # 0.5 s on a quiet machine, up to 2.2 s at a load of 16.
        assert late[1] < 10_000, f"{part}: the 99th percentile is {late[1]} ms late"
    assert number(found["20000 at once, beside others, handed, p100"]) < 60_000
    # 25 us with the compiled twins, 50 without.
    taken = number(found["processor time of a message"])
    limit = (75 if FAST is not None else 150) * limit_s() / LIMIT_S
    assert 0 < taken < limit, f"{taken} us of the brokers for each message, of {limit}"
    assert number(found["others, before"], "of ") > 0 and "p99" in str(found["others, meanwhile"])
