"""Makes a failing plan small before it is shown. A smaller plan has fewer faults, operations and nodes, and
shorter faults.

It uses delta debugging (Zeller's ddmin) on the lists of the plan. A smaller plan is kept if its replay fails
in the same way. Every replay is a whole run, so the search has a budget.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dledger.chaos.scenarios.plan import Plan

T = TypeVar("T")
SHORT_MS = 100

Fails = Callable[[Plan], bool]
"""Returns whether a plan still fails in the same way."""


class BudgetSpent(Exception):
    """Raised when the budget of replays is used up."""


def shrink(plan: Plan, fails: Fails, replays: int) -> Plan:
    """Find a smaller plan that fails in the same way, with at most this many replays."""
    search = _Search(plan, fails, replays)
    with contextlib.suppress(BudgetSpent):
        search.run()
    return search.best


class _Search:
    def __init__(self, plan: Plan, fails: Fails, replays: int) -> None:
        self.best = plan
        self._fails = fails
        self._left = replays

    def run(self) -> None:
        """Repeat all steps until the plan gets no smaller. Raises BudgetSpent if the budget of replays is
        used up."""
        while True:
            before = self.best
            self._fewer_faults()
            self._fewer_nodes()
            self._fewer_operations()
            self._end_sooner()
            self._shorter_faults()
            if self.best == before:
                return

    def _try(self, plan: Plan) -> bool:
        if plan == self.best:
            return False
        if self._left <= 0:
            raise BudgetSpent
        self._left -= 1
        if not self._fails(plan):
            return False
        self.best = plan
        return True

    def _fewer_faults(self) -> None:
        self._minimise(self.best.faults, lambda part: replace(self.best, faults=part))

    def _fewer_operations(self) -> None:
        self._minimise(self.best.operations, lambda part: replace(self.best, operations=part))

    def _fewer_nodes(self) -> None:
        for nodes in (1, 3):
            if nodes < self.best.nodes and self._try(replace(self.best, nodes=nodes)):
                return

    def _end_sooner(self) -> None:
        times = [fault.at_ms + fault.lasting_ms for fault in self.best.faults]
        end = max([*times, *(operation.at_ms for operation in self.best.operations)], default=0) + 1000
        if end < self.best.duration_ms:
            self._try(replace(self.best, duration_ms=end))

    def _shorter_faults(self) -> None:
        for place, fault in enumerate(self.best.faults):
            if fault.lasting_ms > SHORT_MS:
                faults = list(self.best.faults)
                faults[place] = replace(fault, lasting_ms=SHORT_MS)
                self._try(replace(self.best, faults=tuple(faults)))

    def _minimise(self, items: tuple[T, ...], build: Callable[[tuple[T, ...]], Plan]) -> None:
        """Leave out parts of `items`, first large and then ever smaller ones, as long as the rest still
        fails."""
        chunk = len(items)
        while chunk:
            start = 0
            while start < len(items):
                rest = items[:start] + items[start + chunk :]
                if self._try(build(rest)):
                    items = rest
                else:
                    start += chunk
            chunk = chunk // 2
