"""Topics: creates, changes, deletes and lists them; reads their routes, and the lowest and highest offsets of
their queues."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.admin.asking import Asking, masters_of, read, read_body, said
from dledger.admin.blocking import Blocking, Face
from dledger.client.encoding import DEFAULT_TOPIC
from dledger.client.errors import BrokerRefused
from dledger.client.message import check_topic
from dledger.remoting.bodies import GroupList, ListedTopic, TopicConfigList, TopicList, TopicRoute
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import (
    CreateTopicHeader,
    DeleteTopicHeader,
    DeleteTopicInNamesrvHeader,
    TopicConfigHeader,
    TopicHeader,
)
from dledger.remoting.operator_bodies import TopicStats, decode_topic_stats
from dledger.remoting.registration import (
    TopicConfig,
    TopicTable,
    decode_topic_config,
    decode_topic_table,
)


class Topics:
    """Operations on topics. Raises ClientError if a server refuses or does not answer."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def names(self) -> list[str]:
        """All topics that any NameServer knows (request 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER)."""
        return await self._asking.topics()

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic (request 105 GET_ROUTEINFO_BY_TOPIC). Raises TopicNotFound."""
        return await self._asking.route(topic)

    async def clusters(self, topic: str) -> list[str]:
        """The clusters that have the topic."""
        view, route = await self._asking.cluster(), await self._asking.route(topic)
        names = {group.brokerName for group in route.brokerDatas}
        return [name for name in view.clusters() if names & set(view.info.clusterAddrTable[name])]

    async def put(self, address: str, config: TopicConfig, *, order: bool | None = None) -> str:
        """Create a topic at one broker, or change it (request 17 UPDATE_AND_CREATE_TOPIC). Returns the
        broker's remark, which is empty or a warning.

        Attributes are given as changes: `+message.type` sets one and `-message.type` removes one. `order`
        overrides the field of the same name in `config`.
        """
        check_topic(config.topicName)
        header = CreateTopicHeader(
            topic=config.topicName,
            defaultTopic=DEFAULT_TOPIC,
            readQueueNums=config.readQueueNums,
            writeQueueNums=config.writeQueueNums,
            perm=config.perm,
            topicFilterType=config.topicFilterType,
            topicSysFlag=config.topicSysFlag,
            order=config.order if order is None else order,
            attributes=",".join(
                f"{key}={value}" if value else key for key, value in config.attributes.items()
            )
            or None,
        )
        return said(await self._asking.leader(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header))

    async def put_all(self, address: str, configs: Sequence[ListedTopic]) -> None:
        """Create or change several topics, either all of them or none (request 18
        UPDATE_AND_CREATE_TOPIC_LIST)."""
        body = TopicConfigList(list(configs)).encode()
        await self._asking.leader(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)

    async def delete(self, address: str, topic: str) -> None:
        """Delete a topic at one broker, with its messages (request 215 DELETE_TOPIC_IN_BROKER)."""
        code, asked = RequestCode.GET_TOPIC_CONFIG, TopicConfigHeader(topic, byLeader=True)
        life = await self._asking.life(address, code, asked)
        await self._asking.leader(address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader(topic, life))

    async def delete_route(self, namesrv: str, topic: str, cluster: str | None = None) -> None:
        """Make a NameServer forget a topic (request 216 DELETE_TOPIC_IN_NAMESRV)."""
        header = DeleteTopicInNamesrvHeader(topic, cluster)
        await self._asking.broker(namesrv, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def config(self, address: str, topic: str) -> TopicConfig | None:
        """Settings of a topic at one broker (request 351 GET_TOPIC_CONFIG); None if there is no such topic.
        Brokers before RocketMQ 5 do not know the request; for them the settings are taken from `configs`."""
        known = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        answer = await self._asking.broker(
            address, RequestCode.GET_TOPIC_CONFIG, TopicConfigHeader(topic), accept=known
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return (await self.configs(address)).topicConfigTable.get(topic)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return read("topic", decode_topic_config, answer.body)

    async def configs(self, address: str) -> TopicTable:
        """Settings of all topics at one broker (request 21 GET_ALL_TOPIC_CONFIG)."""
        answer = await self._asking.broker(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return read("topics", decode_topic_table, answer.body)

    async def system_names(self, address: str) -> list[str]:
        """Topics that one broker has for its own use (request 305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER)."""
        answer = await self._asking.broker(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return sorted(read_body("topics", TopicList, answer.body).topicList)

    async def stats_at(self, address: str, topic: str) -> TopicStats:
        """Lowest and highest offsets of the topic's queues at one broker, and when their last messages were
        stored (request 202 GET_TOPIC_STATS_INFO)."""
        answer = await self._asking.leader(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic))
        return read("topic", decode_topic_stats, answer.body)

    async def stats(self, topic: str, route_of: str | None = None) -> TopicStats:
        """Lowest and highest offsets of the topic's queues at all brokers that have it. If `route_of` is
        given, the brokers of that topic are asked instead."""
        found = TopicStats({}, 0.0)
        for _, address in masters_of(await self._asking.route(route_of or topic)):
            one = await self.stats_at(address, topic)
            found.offsets.update(one.offsets)
            found.topicPutTps += one.topicPutTps
        if not found.offsets and route_of is None:
            raise BrokerRefused(f"the topic {topic} has no queues")
        return found

    async def groups(self, topic: str) -> list[str]:
        """Consumer groups that have an offset in the topic, or read it now (request 300
        QUERY_TOPIC_CONSUME_BY_WHO)."""
        names: dict[str, None] = {}
        for _, address in masters_of(await self._asking.route(topic)):
            code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
            answer = await self._asking.leader(address, code, TopicHeader(topic))
            found = read_body("groups", GroupList, answer.body)
            names.update(dict.fromkeys(found.groupList))
        return sorted(names)


class BlockingTopics(Face[Topics]):
    """The methods of `Topics` as blocking methods."""

    names = Blocking(Topics.names)
    route = Blocking(Topics.route)
    clusters = Blocking(Topics.clusters)
    put = Blocking(Topics.put)
    put_all = Blocking(Topics.put_all)
    delete = Blocking(Topics.delete)
    delete_route = Blocking(Topics.delete_route)
    config = Blocking(Topics.config)
    configs = Blocking(Topics.configs)
    system_names = Blocking(Topics.system_names)
    stats_at = Blocking(Topics.stats_at)
    stats = Blocking(Topics.stats)
    groups = Blocking(Topics.groups)
