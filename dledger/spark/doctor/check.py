"""The result of one check, and of all checks together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum


class Status(IntEnum):
    """How bad the result of a check is. The worst status of all checks is the exit code of the doctor."""

    OK = 0
    WARNING = 1
    """Jobs run, but slowly, or they may fail later."""
    ERROR = 2
    """Jobs will fail."""


@dataclass(frozen=True)
class Check:
    """The result of one check. `name`: a short word that stays the same; `found`: what the check found;
    `advice`: what to do if the status is not OK."""

    name: str
    status: Status
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The results of all checks, in the order in which they ran."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if all is well, 1 for warnings, 2 for errors."""
        return int(max((check.status for check in self.checks), default=Status.OK))

    def as_json(self) -> dict[str, object]:
        """Return one JSON object. Its keys are stable; new ones may be added."""
        return {
            "verdict": Status(self.exit_code).name.lower(),
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "checks": [
                {
                    "check": check.name,
                    "status": check.status.name.lower(),
                    "found": check.found,
                    "advice": check.advice,
                }
                for check in self.checks
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people."""
        width = max((len(check.name) for check in self.checks), default=0)
        for check in self.checks:
            yield f"{check.status.name.lower():8} {check.name:{width}}  {check.found}"
            if check.advice:
                yield f"{'':8} {'':{width}}  -> {check.advice}"
        verdict = Status(self.exit_code).name.lower()
        yield f"{verdict}: {len(self.checks)} checks in {self.seconds:.1f} s"
