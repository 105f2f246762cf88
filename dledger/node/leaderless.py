"""Explains to an operator why there can be no leader: the stores of too many voters are blank or wait for a
refill. Pure.

A voter counts only with the store that the configuration names (S18). A voter whose store may lack entries
does not vote before a leader has refilled it. If the remaining voters are no majority, there will be no
leader, and without one the other voters will be neither accepted nor refilled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dledger.election.configuration import Configuration
from dledger.election.identity import Hello
from dledger.node.powerloss import KEPT_KEY, META_KEY
from dledger.protocol import PROTOCOL_WITH_PIECES

STUCK_S = 5.0
"""Time, in seconds, without a leader after which a node reports this state. An election, or the decision of
`powerloss`, takes less."""


def lost_majority(
    configuration: Configuration,
    mine: Hello,
    hellos: Mapping[str, Hello],
    votes: Callable[[str], bool],
) -> str:
    """Return what is needed before this group can have a leader again; empty if a leader may come without an
    operator.

    `hellos` are the last hellos of the peers that are connected now, and `mine` is this node's own. A hello
    dates from when the connection was made, and since then the voter may have been refilled. So `votes` says
    whether a voter has just answered a request for its vote. If a node shows a newer configuration, the
    result is empty, because that configuration may name other stores.
    """
    if any(hello.shows_newer(mine) for hello in hellos.values()):
        return ""
    voters = configuration.voters
    here = {voter: hellos[voter] for voter in voters if voter in hellos}
    blank = [voter for voter, hello in here.items() if not configuration.names(voter, hello.incarnation)]
    trusted = {voter: hello for voter, hello in here.items() if voter not in blank}
    refill = [voter for voter, hello in trusted.items() if _awaits_refill(hello) and not votes(voter)]
    power = [voter for voter, hello in trusted.items() if META_KEY in hello.meta]
    rest = len(voters) - len(blank) - len(refill) - len(power)
    missing = len(voters) // 2 + 1 - rest
    if missing <= 0 or not (blank or refill):  # `powerloss` lets them vote when all are here
        return ""
    parts = []
    if blank:
        parts.append(
            f"the stores of {', '.join(blank)} are empty or restored, not the ones that the group recorded"
        )
    if refill or power:
        parts.append(f"{', '.join(sorted([*refill, *power]))} must be refilled by a leader before voting")
    return (
        f"no leader: {'; '.join(parts)}; the others are not a majority of {', '.join(voters)}. "
        f"Needed: {missing} of their old stores, undamaged, or `recover --force-single` "
        "(docs/howto/lost-majority.md)"
    )


def _awaits_refill(hello: Hello) -> bool:
    """Whether the sender of this hello does not vote, for another reason than a loss of power. False for
    programs before protocol 4, which may not report this."""
    told = META_KEY in hello.meta or KEPT_KEY in hello.meta
    return not told and hello.protocol_max >= PROTOCOL_WITH_PIECES
