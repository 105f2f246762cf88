"""Groups as RocketMQ shows them."""

from __future__ import annotations

from dledger.formats.state import GroupConfig
from dledger.remoting.bodies import SubscriptionGroupConfig


def shown_group(group: GroupConfig) -> SubscriptionGroupConfig:
    """Return a group as the answer to 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG and subscriptionGroup.json show
    it."""
    return SubscriptionGroupConfig(
        group.name,
        consumeEnable=group.enable,
        consumeBroadcastEnable=group.broadcast,
        consumeMessageOrderly=group.order,
        retryQueueNums=group.retry_queues,
        retryMaxTimes=group.retry_max,
        groupSysFlag=group.flags,
    )
