"""`dledger admin`: the click group that holds all groups of commands."""

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
"""The commands `dledger admin member ...`. They do the same as `dledger member`, `transfer` and `prefer`,
and connect to the nodes at the ports that the nodes use among themselves."""
ADMIN = Group(
    "admin",
    "Topics, groups, messages, offsets, brokers and accounts of a cluster.",
    [TOPIC, GROUP, MESSAGE, OFFSET, BROKER, NAMESRV, ACL, MEMBER],
)
