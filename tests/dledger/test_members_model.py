"""Configurations against a list: whatever is appended and cut, the last one in the log is in force (S19)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger.config import NodeConfig
from dledger.members import Members
from formats.store_files import Identity

FOUNDERS = {"n0": "a", "n1": "b", "n2": "c"}


@given(st.lists(st.one_of(st.integers(1, 5), st.integers(-12, -1)), max_size=30), st.integers(0, 40))
def test_the_last_configuration_that_is_left_is_in_force(steps: list[int], committed: int) -> None:
    """Positive: so many entries later a configuration is appended; negative: so many entries are cut."""
    members = Members(NodeConfig("g", "n0", dict.fromkeys(FOUNDERS, "h:1"), "/store"))
    members.open(Identity("g", "n0", "a", 4096, "cluster", dict(FOUNDERS)), [])
    model: list[tuple[int, dict[str, str]]] = []
    last = -1
    for number, step in enumerate(steps):
        if step > 0:
            last += step
            model.append((last, {"n0": "a", f"n{number}": f"i{number}"}))
            members.add(*model[-1])
        else:
            last = max(last + step, -1)
            changed = any(index > last for index, _ in model)
            model = [entry for entry in model if entry[0] <= last]
            assert members.cut(last) == changed
        assert members.current == (model[-1][1] if model else FOUNDERS)
        assert members.indexes == [index for index, _ in model]
        assert members.pending(committed) == (bool(model) and model[-1][0] > committed)
