"""Consumer groups and producers: creates, changes and deletes groups; lists connected clients and their
state."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.admin.asking import DLQ_PREFIX, RETRY_PREFIX, Asking, masters_of, read, read_body, said
from dledger.admin.blocking import Blocking, Face
from dledger.client.errors import BrokerRefused, ClientError
from dledger.client.message import check_group
from dledger.remoting.bodies import (
    ConsumerConnections,
    GroupConfigList,
    MessageQueue,
    ProducerConnections,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import (
    ConsumerGroupHeader,
    DeleteSubscriptionGroupHeader,
    GroupHeader,
    ProducerGroupHeader,
)
from dledger.remoting.operator_bodies import (
    ProducerTable,
    RunningInfo,
    decode_consumer_status,
    decode_running_info,
)
from dledger.remoting.operator_headers import ConsumerStatusHeader, RunningInfoHeader
from dledger.remoting.pop_bodies import RequestModeBody


class Groups:
    """Operations on consumer groups. Raises ClientError if a server refuses or does not answer."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def put(self, address: str, config: SubscriptionGroupConfig) -> str:
        """Create a group at one broker, or change it (request 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP).
        Returns the broker's remark: it is empty, or names the settings that have no effect at this broker."""
        check_group(config.groupName)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return said(await self._asking.leader(address, code, None, config.encode()))

    async def put_all(self, address: str, configs: Sequence[SubscriptionGroupConfig]) -> str:
        """Create or change several groups, either all of them or none (request 225
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST). Returns the broker's remark."""
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        return said(await self._asking.leader(address, code, None, GroupConfigList(list(configs)).encode()))

    async def delete(self, address: str, group: str, *, offsets: bool = False) -> None:
        """Delete a group at one broker (request 207 DELETE_SUBSCRIPTIONGROUP). If `offsets` is set, its
        offsets are deleted, too."""
        asked = GroupHeader(group, byLeader=True)
        life = await self._asking.life(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, asked)
        header = DeleteSubscriptionGroupHeader(group, offsets, life)
        await self._asking.leader(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def config(self, address: str, group: str) -> SubscriptionGroupConfig | None:
        """Settings of a group at one broker (request 352 GET_SUBSCRIPTIONGROUP_CONFIG); None if there is no
        such group. Brokers before RocketMQ 5 do not know the request; for them the settings are taken from
        `configs`."""
        known = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        answer = await self._asking.broker(address, code, GroupHeader(group), accept=known)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return (await self.configs(address)).get(group)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return read_body("group", SubscriptionGroupConfig, answer.body)

    async def configs(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Settings of all groups at one broker (request 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG)."""
        answer = await self._asking.broker(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = read_body("groups", SubscriptionGroupTable, answer.body)
        return dict(sorted(table.subscriptionGroupTable.items()))

    async def names(self) -> list[str]:
        """Names of all groups that have a retry topic. This topic is created with a group's first
        consumer."""
        names = await self._asking.topics()
        return sorted(name.removeprefix(RETRY_PREFIX) for name in names if name.startswith(RETRY_PREFIX))

    @staticmethod
    def topics_left(group: str) -> tuple[str, str]:
        """Names of the two topics that belong to a group: its retry topic, and the topic of its dead
        letters."""
        return RETRY_PREFIX + group, DLQ_PREFIX + group

    async def connections(self, group: str, address: str | None = None) -> ConsumerConnections:
        """The consumers of a group, according to the broker at `address`, or without it to a broker that has
        the group (request 203 GET_CONSUMER_CONNECTION_LIST). Raises Refused with code 206 CONSUMER_NOT_ONLINE
        if there are none."""
        where = address or await self._one_of(group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = await self._asking.leader(where, code, ConsumerGroupHeader(group))
        return read_body("consumers", ConsumerConnections, answer.body)

    async def running_info(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """The state of one consumer (request 307 GET_CONSUMER_RUNNING_INFO); with `stacks` also the stacks of
        its threads."""
        header = RunningInfoHeader(group, client_id, stacks)
        address = await self._one_of(group)
        answer = await self._asking.leader(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        return read("consumer", decode_running_info, answer.body)

    async def positions(
        self, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """The offsets of a group as its consumers report them (request 223
        INVOKE_BROKER_TO_GET_CONSUMER_STATUS). Returns a dict from client id to a dict from queue to
        offset."""
        header = ConsumerStatusHeader(topic, group, client_id)
        for _, address in masters_of(await self._asking.route(topic)):
            code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
            answer = await self._asking.leader(address, code, header)
            return read("consumers", decode_consumer_status, answer.body)
        raise BrokerRefused(f"no broker serves the topic {topic}")

    async def set_request_mode(
        self, address: str, topic: str, group: str, mode: str, share_queues: int = 0
    ) -> None:
        """Set whether the consumers of a group PULL or POP (request 401 SET_MESSAGE_REQUEST_MODE).
        `share_queues` is the number of other consumers with which a consumer shares its queues."""
        body = RequestModeBody(topic, group, mode, share_queues).encode()
        await self._asking.leader(address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, body)

    async def producers(self, group: str, topic: str) -> ProducerConnections:
        """Producers of a group, according to a broker of the topic (request 204
        GET_PRODUCER_CONNECTION_LIST)."""
        for _, address in masters_of(await self._asking.route(topic)):
            code = RequestCode.GET_PRODUCER_CONNECTION_LIST
            answer = await self._asking.leader(address, code, ProducerGroupHeader(group))
            return read_body("producers", ProducerConnections, answer.body)
        raise BrokerRefused(f"no broker serves the topic {topic}")

    async def all_producers(self, address: str) -> ProducerTable:
        """Producers of all groups that are connected to one broker (request 328 GET_ALL_PRODUCER_INFO)."""
        answer = await self._asking.leader(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return read_body("producers", ProducerTable, answer.body)

    async def _one_of(self, group: str) -> str:
        for _, address in await self._asking.places_of_group(group):
            return address
        raise ClientError(f"no broker of the group {group} is registered")


class BlockingGroups(Face[Groups]):
    """The methods of `Groups` as blocking methods."""

    put = Blocking(Groups.put)
    put_all = Blocking(Groups.put_all)
    delete = Blocking(Groups.delete)
    config = Blocking(Groups.config)
    configs = Blocking(Groups.configs)
    names = Blocking(Groups.names)
    connections = Blocking(Groups.connections)
    running_info = Blocking(Groups.running_info)
    positions = Blocking(Groups.positions)
    set_request_mode = Blocking(Groups.set_request_mode)
    producers = Blocking(Groups.producers)
    all_producers = Blocking(Groups.all_producers)
