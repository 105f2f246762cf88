"""The log door."""

from __future__ import annotations

import pytest

from dledger.runtime.log import MAX_LINE, StandardLog


def test_a_line_is_bounded_whatever_its_fields_hold(caplog: pytest.LogCaptureFixture) -> None:
    StandardLog("x").warning("refused", peer="n1", reason="y" * 10_000_000)
    StandardLog("x").warning("refused", reason="y")
    long, short = (record.getMessage() for record in caplog.records)
    assert len(long) < MAX_LINE + 100
    assert long.startswith("refused peer=n1 reason=yyy") and long.endswith("yyy ... (10000023 characters)")
    assert short == "refused reason=y"
