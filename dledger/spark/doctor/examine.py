"""Run all checks one after another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator

from dledger.spark.doctor import machine
from dledger.spark.doctor.check import Check, Diagnosis, Status
from dledger.spark.session import Place, place_of

NEEDED = ("packages", "java", "SPARK_HOME")
"""Names of the checks without which no session starts. If one of them fails, no session is started: it
would only print a stack trace."""


def examine(
    master: str | None = None,
    stores: Iterable[str] = (),
    *,
    start_spark: bool = True,
    progress: Callable[[str], None] = lambda name: None,
) -> Diagnosis:
    """Run all checks. Blocking, about 10 s. `progress` is called with the name of each finished check."""
    began = time.monotonic()
    checks = []
    for check in _checks(master, tuple(stores), start_spark):
        progress(check.name)
        checks.append(check)
    return Diagnosis(tuple(checks), time.monotonic() - began)


def _checks(master: str | None, stores: tuple[str, ...], start_spark: bool) -> Iterator[Check]:
    hopeless = False
    connect = place_of(master, os.environ) is Place.CONNECT
    for check in machine.look(os.environ, stores, connect=connect):
        hopeless |= check.name in NEEDED and check.status is Status.ERROR
        yield check
    if not start_spark:
        return
    if hopeless:
        yield Check("session", Status.ERROR, "not tried", "see above")
        return
    from dledger.spark.doctor import job

    yield from job.look(master, stores)
