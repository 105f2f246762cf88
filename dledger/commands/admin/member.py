"""`dledger admin member`: the members of a Raft group, and who leads it. The same as `dledger member`,
`dledger transfer` and `dledger prefer`, which know the nodes by the ports of their peers (`--peers`)."""

from __future__ import annotations

from dledger.commands.declared.log import leadership, members
from dledger.commands.declaring import Group

MEMBER = Group(
    "member",
    "Members of a Raft group: list, add, remove, promote, transfer, prefer.",
    [*members(), *leadership()],
)
