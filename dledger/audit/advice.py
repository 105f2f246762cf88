"""Warnings for an operator who is about to follow the advice of single findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.audit.findings import CODES, Finding, Severity

_DELETES = "delete its store"


def caution(findings: Iterable[Finding]) -> str:
    """Return a warning if two repairs, each of which is right by itself, may together lose data; otherwise an
    empty text."""
    every = list(findings)
    refilled = {
        name
        for found in every
        if _DELETES in CODES[found.code].advice
        for name in found.replica.split(",")
        if name
    }
    if refilled and any(found.severity in (Severity.CRITICAL, Severity.UNKNOWN) for found in every):
        return (
            "Delete no store until all critical findings, and all parts that could not be checked, "
            "are settled: a damaged store may hold the only good copy of an entry."
        )
    if len(refilled) > 1:
        return (
            "Repair one node at a time: continue with the next one only when this one has caught up "
            "and the audit finds it clean."
        )
    return ""
