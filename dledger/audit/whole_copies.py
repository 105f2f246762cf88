"""Says of damaged entries whether anything is lost: which other replicas have them whole, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dledger.audit.findings import Finding
from dledger.audit.scan import EntryRow
from dledger.audit.walk import BODY_DAMAGED, CHAIN_BROKEN
from dledger.formats.entry import HEADER_SIZE, CorruptEntry, unpack_header
from dledger.formats.record import CorruptRecord, decode_record

ReadEntry = Callable[[str, int], bytes | None]
"""Function that reads one entry of a replica, with its header: (replica, index). None if it cannot be read."""
MAX_NAMED = 20
"""Number of damaged entries of a report whose topic, queue and offset are looked up."""


class WholeCopies:
    """For damaged entries, the replicas that have them whole: runs of (first index, last index, replicas)."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, tuple[str, ...]]] = []

    def add(self, index: int, copies: Iterable[EntryRow], damaged: Iterable[str]) -> None:
        """Add the copies of one entry. Indexes must be added in ascending order. `damaged` are the replicas
        whose copy is damaged according to a comparison."""
        bad = set(damaged)
        sound = [one for one in copies if one.replica not in bad and not one.damage & (BODY_DAMAGED | CHAIN_BROKEN)]
        if len({(one.term, one.size, one.crc) for one in sound}) > 1:
            sound = []  # they differ, and another finding says so
        names = tuple(sorted(one.replica for one in sound))
        if self._runs and self._runs[-1][1] + 1 == index and self._runs[-1][2] == names:
            self._runs[-1] = (self._runs[-1][0], index, names)
        else:
            self._runs.append((index, index, names))

    def of(self, first: int, last: int, but: str) -> list[tuple[int, tuple[str, ...]]]:
        """For the entries first to last that were added: how many each set of replicas has whole."""
        return [
            (min(last, end) - max(first, begin) + 1, tuple(name for name in names if name != but))
            for begin, end, names in self._runs
            if begin <= last and end >= first
        ]


def explained(findings: list[Finding], whole: WholeCopies, read: ReadEntry, commit: int) -> list[Finding]:
    """Return the findings; those of corruption say which replicas have the entries whole, and which message it
    is. `commit`: the highest committed index."""
    named = 0
    result = []
    for found in findings:
        if found.code == "BIT_ROT" and 0 <= found.first_index <= commit:
            text, holder = _sentence(found, whole)
            single = found.first_index == found.last_index
            if holder and single and named < MAX_NAMED:
                named += 1
                message = _message(read(holder, found.first_index))
                text = f"{text}: {message}" if message else text
            found = found._replace(detail=f"{found.detail}; {text}" if text else found.detail)
        result.append(found)
    return result


def _sentence(found: Finding, whole: WholeCopies) -> tuple[str, str]:
    """Return what the others have of damaged entries, and one replica that has the first of them."""
    wanted = found.last_index - found.first_index + 1
    counts = whole.of(found.first_index, found.last_index, found.replica)
    if not counts:
        return "", ""  # nothing could be compared, which another finding says
    have = sum(count for count, names in counts if names)
    everywhere = [name for name in counts[0][1] if all(name in names for _, names in counts)]
    it = "it" if wanted == 1 else "them"
    if have == wanted and everywhere:
        verb = "has" if len(everywhere) == 1 else "have"
        return f"nothing is lost, {_listed(everywhere)} {verb} {it} whole", everywhere[0]
    if have == wanted:
        return "nothing is lost, the other replicas together have them whole", ""
    if not have:
        return f"no other replica that was audited has {it} whole", ""
    return f"other replicas have {have} of these {wanted} entries whole", ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _message(entry: bytes | None) -> str:
    try:
        header = unpack_header(entry or b"")
        record = decode_record((entry or b"")[HEADER_SIZE : header.size], with_body=False)
    except (CorruptEntry, CorruptRecord, ValueError):
        return ""
    return f"topic {record.topic}, queue {record.queue_id}, offset {record.queue_offset}"
