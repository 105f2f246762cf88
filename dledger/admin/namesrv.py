"""NameServers: settings, key-values, and whether producers may write to a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger.admin.asking import Asking, read_body
from dledger.admin.blocking import Blocking, Face
from dledger.admin.brokers import parse_settings, settings_body
from dledger.client.errors import BrokerRefused
from dledger.remoting.bodies import KvTable
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadHeader
from dledger.remoting.headers import (
    AddWritePermResponseHeader,
    BrokerNameHeader,
    KvConfigHeader,
    KvConfigResponseHeader,
    KvNamespaceHeader,
    PutKvConfigHeader,
)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of the key-values that say how many queues an ordered topic has at each broker group."""


class NameServers:
    """Operations on NameServers. Raises ClientError if a NameServer refuses or does not answer."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the NameServers that this client uses."""
        return self._asking.core.namesrv

    async def settings(self, address: str) -> dict[str, str]:
        """Settings of one NameServer (request 319 GET_NAMESRV_CONFIG)."""
        answer = await self._asking.broker(address, RequestCode.GET_NAMESRV_CONFIG)
        return parse_settings(answer.body)

    async def change_settings(self, address: str, properties: Mapping[str, str]) -> None:
        """Change settings of one NameServer while it runs (request 318 UPDATE_NAMESRV_CONFIG)."""
        await self._asking.broker(address, RequestCode.UPDATE_NAMESRV_CONFIG, None, settings_body(properties))

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key-value at all NameServers (request 100 PUT_KV_CONFIG). Each NameServer has its own table,
        unless they replicate one."""
        for address in self.addresses:
            header = PutKvConfigHeader(namespace, key, value)
            await self._asking.broker(address, RequestCode.PUT_KV_CONFIG, header)

    async def get(self, namespace: str, key: str) -> str | None:
        """The value of a key (request 101 GET_KV_CONFIG); None if it is not set."""
        header = KvConfigHeader(namespace, key)
        none = (ResponseCode.QUERY_NOT_FOUND,)
        answers = await self._asking.namesrvs(RequestCode.GET_KV_CONFIG, header, _found, accept=none)
        try:
            return answers[0].header(KvConfigResponseHeader).value if answers else None
        except BadHeader as error:
            raise BrokerRefused(f"key-value: {error.remark}") from error

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a key-value at all NameServers (request 102 DELETE_KV_CONFIG)."""
        for address in self.addresses:
            await self._asking.broker(address, RequestCode.DELETE_KV_CONFIG, KvConfigHeader(namespace, key))

    async def put_order(self, topic: str, queues: Mapping[str, int]) -> None:
        """Set how many queues an ordered topic has at each of these broker groups. The entries of other
        broker groups stay as they are."""
        parts = await self._order(topic)
        parts |= {name: f"{name}:{count}" for name, count in queues.items()}
        await self.put(ORDER_TOPIC_CONFIG, topic, ";".join(parts.values()))

    async def drop_order(self, topic: str, broker_names: Iterable[str]) -> None:
        """Remove the entries of these broker groups from the key of an ordered topic. If no entry is left,
        the key is deleted."""
        before, gone = await self._order(topic), set(broker_names)
        after = [part for name, part in before.items() if name not in gone]
        if after and len(after) < len(before):
            await self.put(ORDER_TOPIC_CONFIG, topic, ";".join(after))
        elif before and not after:
            await self.delete(ORDER_TOPIC_CONFIG, topic)

    async def _order(self, topic: str) -> dict[str, str]:
        """The entries of an ordered topic. Returns a dict from broker name to the entry, whose form is
        `name:queues`."""
        text = await self.get(ORDER_TOPIC_CONFIG, topic) or ""
        return {part.partition(":")[0]: part for part in text.split(";") if part}

    async def all_of(self, namespace: str) -> dict[str, str]:
        """All key-values of a namespace (request 219 GET_KVLIST_BY_NAMESPACE)."""
        none = (ResponseCode.QUERY_NOT_FOUND,)
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        answers = await self._asking.namesrvs(code, KvNamespaceHeader(namespace), _found, accept=none)
        table: dict[str, str] = {}
        for answer in answers:
            table = read_body("key-values", KvTable, answer.body).table | table
        return dict(sorted(table.items()))

    async def wipe_write_perm(self, address: str, broker_name: str) -> int:
        """Stop producers from writing to a broker (request 205 WIPE_WRITE_PERM_OF_BROKER). Returns the number
        of topics that changed."""
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        answer = await self._asking.broker(address, code, BrokerNameHeader(broker_name))
        count = answer.ext.get("wipeTopicCount", "")
        return int(count) if count.isdecimal() else 0

    async def add_write_perm(self, address: str, broker_name: str) -> int:
        """Let producers write to a broker again (request 327 ADD_WRITE_PERM_OF_BROKER). Returns the number of
        topics that changed."""
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER
        answer = await self._asking.broker(address, code, BrokerNameHeader(broker_name))
        try:
            return answer.header(AddWritePermResponseHeader).addTopicCount
        except BadHeader as error:
            raise BrokerRefused(f"{code.name}: {error.remark}") from error


def _found(answer: Response) -> int:
    return int(answer.code == ResponseCode.SUCCESS)


class BlockingNameServers(Face[NameServers]):
    """The methods of `NameServers` as blocking methods."""

    settings = Blocking(NameServers.settings)
    change_settings = Blocking(NameServers.change_settings)
    put = Blocking(NameServers.put)
    get = Blocking(NameServers.get)
    delete = Blocking(NameServers.delete)
    put_order = Blocking(NameServers.put_order)
    drop_order = Blocking(NameServers.drop_order)
    all_of = Blocking(NameServers.all_of)
    wipe_write_perm = Blocking(NameServers.wipe_write_perm)
    add_write_perm = Blocking(NameServers.add_write_perm)
