"""The clients of an operator: one for programs with an event loop, one for those without."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from dledger.admin.accounts import Accounts, BlockingAccounts
from dledger.admin.asking import Asking
from dledger.admin.brokers import BlockingBrokers, Brokers
from dledger.admin.groups import BlockingGroups, Groups
from dledger.admin.messages import BlockingMessages, Messages
from dledger.admin.namesrv import BlockingNameServers, NameServers
from dledger.admin.offsets import BlockingOffsets, Offsets
from dledger.admin.topics import BlockingTopics, Topics
from dledger.client.core import ClientCore
from dledger.client.lifecycle import AsyncClient
from dledger.client.loop_thread import BlockingClient
from dledger.client.options import ClientOptions, namesrv_addresses, options_of
from dledger.runtime import Env


class AsyncAdminClient(AsyncClient):
    """Sends the requests of operators to brokers and NameServers.

    >>> async with AsyncAdminClient("127.0.0.1:9876") as admin:    # doctest: +SKIP
    ...     print(await admin.topics.names())

    A broker that is not its group's leader forwards requests that only the leader can answer. A request to a
    group without a leader waits at most `failover_timeout_s`. Namespaces are not used here.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        client: ClientOptions | None = None,
        env: Env | None = None,
    ) -> None:
        """`namesrv` holds addresses separated by `;`; by default they are taken from NAMESRV_ADDR. Raises
        ClientError if there are none."""
        options = replace(options_of(ClientOptions, client, "client"), redirect=False, namespace="")
        super().__init__(ClientCore(env, namesrv, options), "admin")
        asking = Asking(self._core)
        self.topics: Topics = Topics(asking)
        self.groups: Groups = Groups(asking)
        self.offsets: Offsets = Offsets(asking)
        self.messages: Messages = Messages(asking, self.groups, self.offsets)
        self.brokers: Brokers = Brokers(asking)
        self.namesrv: NameServers = NameServers(asking)
        self.accounts: Accounts = Accounts(asking)

    @property
    def options(self) -> ClientOptions:
        """The connection settings: account, TLS, time limits."""
        return self._core.options

    def now_ms(self) -> int:
        """The wall clock, in ms since the epoch."""
        return self._core.env.wall.now_ms()


class AdminClient(BlockingClient[AsyncAdminClient]):
    """`AsyncAdminClient` for programs without an event loop; may be used from any thread.

    >>> with AdminClient("127.0.0.1:9876") as admin:    # doctest: +SKIP
    ...     print(admin.topics.names())

    Its attributes `topics`, `groups` and so on have the methods of `Topics`, `Groups` and so on, as blocking
    methods.
    """

    def __init__(
        self, namesrv: str | Sequence[str] | None = None, client: ClientOptions | None = None
    ) -> None:
        super().__init__("admin")
        self._namesrv = None if namesrv is None else namesrv_addresses(namesrv)
        self._client = options_of(ClientOptions, client, "client")
        self.topics: BlockingTopics = BlockingTopics(self._waited, lambda: self._open()[0].topics)
        self.groups: BlockingGroups = BlockingGroups(self._waited, lambda: self._open()[0].groups)
        self.offsets: BlockingOffsets = BlockingOffsets(self._waited, lambda: self._open()[0].offsets)
        self.messages: BlockingMessages = BlockingMessages(self._waited, lambda: self._open()[0].messages)
        self.brokers: BlockingBrokers = BlockingBrokers(self._waited, lambda: self._open()[0].brokers)
        self.namesrv: BlockingNameServers = BlockingNameServers(self._waited, lambda: self._open()[0].namesrv)
        self.accounts: BlockingAccounts = BlockingAccounts(self._waited, lambda: self._open()[0].accounts)

    def _make(self) -> AsyncAdminClient:
        return AsyncAdminClient(self._namesrv, self._client)

    def _waited(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return self._run(lambda _: call())
