"""`dledger admin`: all its groups."""

from __future__ import annotations

from dledger.commands.declared.admin.acl import ACL
from dledger.commands.declared.admin.broker import BROKER
from dledger.commands.declared.admin.group import GROUP
from dledger.commands.declared.admin.message import MESSAGE
from dledger.commands.declared.admin.namesrv import NAMESRV
from dledger.commands.declared.admin.offset import OFFSET
from dledger.commands.declared.admin.topic import TOPIC
from dledger.commands.declared.log import leadership, members
from dledger.commands.declaring import Group

MEMBER = Group(
    "member",
    "Members of a Raft group: list, add, remove, promote, transfer, prefer.",
    [*members(), *leadership()],
)
"""Commands that `dledger admin` shares with `dledger member`, `transfer` and `prefer`. They find the nodes by
the ports of their peers."""
ADMIN = Group(
    "admin",
    "Topics, groups, messages, offsets, brokers and accounts of a cluster.",
    [TOPIC, GROUP, MESSAGE, OFFSET, BROKER, NAMESRV, ACL, MEMBER],
)
