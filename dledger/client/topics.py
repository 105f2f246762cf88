"""Creates and deletes topics on the leader of each broker group, and waits until the NameServers know of
it."""

from __future__ import annotations

import asyncio

from dledger.client.core import ClientCore
from dledger.client.encoding import DEFAULT_TOPIC
from dledger.client.errors import BrokerRefused, NoBroker, TopicNotFound
from dledger.client.message import check_topic
from dledger.client.routes import publish_queues
from dledger.formats import life
from dledger.remoting.bodies import PERM_READ, PERM_WRITE
from dledger.remoting.codes import RequestCode
from dledger.remoting.headers import CreateTopicHeader, DeleteTopicHeader, TopicConfigHeader


async def create_topic(core: ClientCore, topic: str, queues: int, broker_name: str | None = None) -> None:
    """Create a topic, or change its number of queues, in all broker groups or in one.

    Returns when the NameServers return the route. An attempt without an answer is repeated. If the first
    attempt arrives late, the broker carries out the request once more. Raises InvalidMessage for a bad name,
    BrokerRefused, or NoBroker if no leader or no route appears in time. Raises OutcomeUnknown if an attempt
    got no answer and no later one succeeded.
    """
    check_topic(topic)
    if not 1 <= queues <= 1024:
        raise BrokerRefused(f"queues={queues}: give a number from 1 to 1024")
    groups = await _find_groups(core, broker_name)
    header = CreateTopicHeader(
        topic=topic,
        defaultTopic=DEFAULT_TOPIC,
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=PERM_READ | PERM_WRITE,
        topicSysFlag=0,
    )
    for name in groups:
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await core.change(core.group(name), None, code, header, f"create topic {topic!r}")
    await _wait_for_route(core, topic, queues, groups)


async def delete_topic(core: ClientCore, topic: str, broker_name: str | None = None) -> None:
    """Delete a topic with its messages, in all broker groups or in one. A topic that does not exist counts as
    deleted. Returns when the brokers have deleted it and reported that to the NameServers.

    An attempt without an answer is repeated. The first attempt may then arrive very late, when the topic has
    been created again. The new topic stays nevertheless, because the request names the *life* of the topic
    that it deletes (the time between a creation and a deletion). This does not work if the topic was not
    found in the beginning, or the broker is not one of ours. Raises InvalidMessage for a bad name,
    BrokerRefused, NoBroker or OutcomeUnknown.
    """
    check_topic(topic)
    for name in await _find_groups(core, broker_name):
        group = core.group(name)
        asked = TopicConfigHeader(topic, byLeader=True)
        known = await core.invoke_leader(group, None, RequestCode.GET_TOPIC_CONFIG, asked)
        header = DeleteTopicHeader(
            topic, known.ext.get(life.FIELD)
        )  # None: not there, or not a broker of ours
        await core.change(group, None, RequestCode.DELETE_TOPIC_IN_BROKER, header, f"delete topic {topic!r}")


async def _find_groups(core: ClientCore, broker_name: str | None) -> list[str]:
    deadline = core.now() + core.options.failover_timeout_s
    while True:
        brokers = await core.cluster()
        names = sorted(brokers) if broker_name is None else [broker_name] if broker_name in brokers else []
        if names:
            return names
        if core.now() >= deadline:
            wanted = "no broker" if broker_name is None else f"no broker named {broker_name!r}"
            raise NoBroker(f"{wanted} is registered at the NameServer: start it")
        await asyncio.sleep(core.options.search_longest_s)


async def _wait_for_route(core: ClientCore, topic: str, queues: int, groups: list[str]) -> None:
    deadline = core.now() + core.options.failover_timeout_s
    pause = core.options.search_first_s
    while True:
        try:
            found = publish_queues(topic, await core.refresh(topic))
        except TopicNotFound:
            found = []
        if all(sum(queue.broker_name == name for queue in found) == queues for name in groups):
            return
        if core.now() >= deadline:
            raise NoBroker(f"the topic {topic!r} is created, but the NameServers do not list it yet")
        await asyncio.sleep(pause)
        pause = min(2 * pause, core.options.search_longest_s)
