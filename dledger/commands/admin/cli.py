"""`dledger admin`: all its groups."""

from __future__ import annotations

from dledger.commands.admin.acl import ACL
from dledger.commands.admin.broker import BROKER
from dledger.commands.admin.group import GROUP
from dledger.commands.admin.member import MEMBER
from dledger.commands.admin.message import MESSAGE
from dledger.commands.admin.namesrv import NAMESRV
from dledger.commands.admin.offset import OFFSET
from dledger.commands.admin.running import group
from dledger.commands.admin.topic import TOPIC

admin = group("admin", "Topics, groups, messages, offsets, brokers and accounts of a cluster.")
for _part in (TOPIC, GROUP, MESSAGE, OFFSET, BROKER, NAMESRV, ACL, MEMBER):
    admin.add_command(_part)
