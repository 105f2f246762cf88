"""Computes the result of a round of votes (DLedgerLeaderElector's arbitration, VoteResponse.ParseResult).
Pure.

The rules are DLedger's, in DLedger's order, with one difference: first of all it is checked whether there is
a quorum of votes. So a voter that has not noticed yet that its leader is gone cannot undo a round that the
others have decided. (In DLedger one such answer costs six seconds.) Answers with a higher term are not passed
to this module, because such a term is taken over at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from dledger.messages import VoteResult

_BETTER_LOG = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)


class Verdict(Enum):
    """Result of a round of votes (VoteResponse.ParseResult)."""

    PASSED = "PASSED"
    REVOTE_IMMEDIATELY = "REVOTE_IMMEDIATELY"
    """A quorum would accept the candidate, but some of these voters are not ready yet."""
    WAIT_TO_REVOTE = "WAIT_TO_REVOTE"
    """There are too few answers, or another node has the better log and should stand first."""
    WAIT_TO_VOTE_NEXT = "WAIT_TO_VOTE_NEXT"
    """Other candidates got the votes, or there is a leader."""


def arbitrate(results: Mapping[str, VoteResult], voters: Sequence[str]) -> Verdict:
    """Return the result of a round if no more answers come. Voters that did not answer are missing in
    `results`."""
    answers = [results.get(voter, VoteResult.UNKNOWN) for voter in voters]
    majority = len(voters) // 2 + 1
    accepted = answers.count(VoteResult.ACCEPT)
    if accepted >= majority:
        return Verdict.PASSED
    if VoteResult.REJECT_ALREADY_HAS_LEADER in answers:
        return Verdict.WAIT_TO_VOTE_NEXT
    not_ready = answers.count(VoteResult.REJECT_TERM_NOT_READY)
    if accepted + not_ready >= majority:
        return Verdict.REVOTE_IMMEDIATELY
    better = sum(answers.count(result) for result in _BETTER_LOG)
    valid = len(voters) - answers.count(VoteResult.UNKNOWN)
    if valid < majority or accepted + better >= majority:
        return Verdict.WAIT_TO_REVOTE
    return Verdict.WAIT_TO_VOTE_NEXT


def lost(results: Mapping[str, VoteResult], voters: Sequence[str]) -> bool:
    """Whether a quorum can no longer be reached, whatever the missing answers are."""
    refused = sum(1 for voter in voters if results.get(voter, VoteResult.ACCEPT) is not VoteResult.ACCEPT)
    return len(voters) - refused <= len(voters) // 2


def somebody_is_ahead(results: Mapping[str, VoteResult]) -> bool:
    """Whether a voter refused because its own log is better."""
    return any(result in _BETTER_LOG for result in results.values())
