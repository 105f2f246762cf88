"""Says of damaged entries whether anything is lost: which other replicas have them whole, and which messages
they are."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable

from dledger.audit.findings import Finding
from dledger.audit.scan import EntryRow
from dledger.audit.walk import BODY_DAMAGED, CHAIN_BROKEN
from dledger.formats.entry import HEADER_SIZE, unpack_header
from dledger.formats.record import CorruptRecord, decode_record

ReadEntry = Callable[[str, int], bytes | None]
"""Function that reads one entry, with its header, of a replica at an index. None if it cannot be read."""
_NO_INDEX = 1 << 62
"""Higher than any index."""
MAX_NAMED = 20
"""Number of damaged entries of a report whose topic, queue and offset are looked up."""


class WholeCopies:
    """For damaged entries, the replicas that have them whole: runs of (first index, last index, replicas).
    `findings` are those of the replicas by themselves."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._runs: list[tuple[int, int, tuple[str, ...]]] = []
        spans = sorted((one.first_index, one.last_index) for one in findings if one.code == "BIT_ROT")
        self._spans: list[tuple[int, int]] = []
        for first, last in spans:
            if self._spans and self._spans[-1][1] >= first:
                self._spans[-1] = (self._spans[-1][0], max(last, self._spans[-1][1]))
            else:
                self._spans.append((first, last))

    def _is_damaged(self, index: int) -> bool:
        at = bisect_right(self._spans, (index, _NO_INDEX)) - 1
        return at >= 0 and self._spans[at][1] >= index

    def add(self, index: int, copies: Iterable[EntryRow], damaged: Iterable[str]) -> None:
        """Add the copies of one entry, if one of them is damaged. Indexes must be added in ascending order.
        `damaged` are the replicas whose copy is damaged according to a comparison."""
        bad = set(damaged)
        if not bad and not self._is_damaged(index):
            return
        sound = [
            one for one in copies if one.replica not in bad and not one.damage & (BODY_DAMAGED | CHAIN_BROKEN)
        ]
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
    """Return the findings; those of corruption say which replicas have the entries whole, and which message
    it is. `commit`: the highest committed index."""
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
    except (CorruptRecord, struct.error):
        return ""
    return f"topic {record.topic}, queue {record.queue_id}, offset {record.queue_offset}"
