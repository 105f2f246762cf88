"""Administration of RocketMQ-compatible clusters: the functions of `dledger mqadmin` and `dledger admin` as a
library.

`AsyncAdminClient` is for programs with an event loop, `AdminClient` for those without one. The methods are
grouped by subject: `topics`, `groups`, `offsets`, `messages`, `brokers`, `namesrv`, `accounts`.

    with AdminClient("127.0.0.1:9876") as admin:
        admin.topics.names()

It asks brokers by their address, as mqadmin does, and works with Apache's brokers as with ours. Names are
those that brokers use: no namespace is put before topics and groups.

The modules: `asking` (one request to one server, and refusals), one module for each of those subjects,
`blocking` (the same methods, which wait for the result), `client` (both clients).
"""

from dledger.admin.accounts import Accounts
from dledger.admin.asking import ClusterView, Refused
from dledger.admin.brokers import Brokers
from dledger.admin.client import AdminClient, AsyncAdminClient
from dledger.admin.groups import Groups
from dledger.admin.messages import Messages, MessageTrack, Pulled, StoredMessage, TrackType
from dledger.admin.namesrv import NameServers
from dledger.admin.offsets import OffsetChange, Offsets
from dledger.admin.topics import Topics

__all__ = [
    "Accounts",
    "AdminClient",
    "AsyncAdminClient",
    "Brokers",
    "ClusterView",
    "Groups",
    "MessageTrack",
    "Messages",
    "NameServers",
    "OffsetChange",
    "Offsets",
    "Pulled",
    "Refused",
    "StoredMessage",
    "Topics",
    "TrackType",
]
