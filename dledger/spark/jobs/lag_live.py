"""The present consumer lag, asked from brokers. This module does not use Spark."""

from __future__ import annotations

import asyncio

from dledger.client import AsyncPullConsumer, ClientOptions, MessageQueue, TopicNotFound
from dledger.client.errors import ClientError
from dledger.runtime import Env
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.lag_report import Lag, QueueLag

ASKING_GROUP = "TOOLS_CONSUMER"
"""The consumer group of RocketMQ's own tools: requests in its name change the offsets of no application."""
AT_ONCE = 64
"""Largest number of requests in flight at the same time."""


async def lag_live(
    env: Env,
    namesrv: str,
    *,
    consumers: tuple[str, ...],
    topics: tuple[str, ...],
    warn_above: int | None = None,
    client: ClientOptions | None = None,
) -> Lag:
    """Ask brokers for the lag of these consumer groups in these topics. Raises JobError if brokers cannot
    be asked.

    A queue in which the group has no committed offset counts from its first message, but only if the group
    has an offset in another queue of the topic.
    """
    if not consumers or not topics:
        raise JobError(
            "brokers cannot list which groups consume which topics: name them with --consumer and --topics"
        )
    limit = asyncio.Semaphore(AT_ONCE)
    try:
        async with AsyncPullConsumer(ASKING_GROUP, namesrv, client=client, env=env) as asking:
            offsets = asking._offsets  # which also knows the offsets of other groups

            async def look(consumer: str, queue: MessageQueue) -> tuple[QueueLag, bool]:
                async with limit:
                    end, committed = await asyncio.gather(
                        offsets.highest(queue), offsets.committed(queue, consumer)
                    )
                    known = committed is not None
                    stands = committed if committed is not None else await offsets.lowest(queue)
                place = (queue.broker_name, queue.topic, queue.queue_id)
                return QueueLag(consumer, *place, end, stands, max(0, end - stands)), known

            queues = [queue for topic in topics for queue in await asking.queues(topic)]
            async with asyncio.TaskGroup() as group:
                looks = [
                    group.create_task(look(consumer, queue), name=f"lag {consumer} {queue.queue_id}")
                    for consumer in consumers
                    for queue in queues
                ]
    except (ClientError, TopicNotFound) as error:
        raise JobError(str(error)) from None
    except ExceptionGroup as errors:  # of the tasks; what is raised in `except*` would be a group again
        first = _first(errors)
        if not isinstance(first, ClientError | TopicNotFound):
            raise
        raise JobError(str(first)) from None
    found = [task.result() for task in looks]
    subscribed = {(one.consumer, one.topic) for one, known in found if known}
    known_names = [consumer for consumer, _ in sorted(subscribed)]
    unknown = [consumer for consumer in consumers if consumer not in known_names]
    if unknown:
        raise JobError(f"consumer group {', '.join(unknown)} has no offset in {', '.join(topics)}")
    return Lag([one for one, _ in found if (one.consumer, one.topic) in subscribed], warn_above=warn_above)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    one = errors.exceptions[0]
    return _first(one) if isinstance(one, BaseExceptionGroup) else one
