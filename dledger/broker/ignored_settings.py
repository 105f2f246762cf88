"""RocketMQ's properties that a broker accepts in its file and ignores, with what replaces them."""

from __future__ import annotations

from types import MappingProxyType

IGNORED = MappingProxyType(
    {
        "brokerId": "who leads is elected: it registers as 0, a follower by the number in its dLegerSelfId",
        "brokerRole": "who leads is elected",
        "brokerIP2": "brokers replicate over the addresses in dLegerPeers",
        "haListenPort": "brokers replicate over the addresses in dLegerPeers",
        "mappedFileSizeCommitLog": "the size of a segment is mapedFileSizeCommitLog, with one p",
        "flushConsumerOffsetHistoryInterval": "consumer offsets are in the replicated log",
        "sendMessageThreadPoolNums": "one event loop takes all messages",
        "queryMessageThreadPoolNums": "one event loop takes all requests",
        **dict.fromkeys(
            (
                *("userCacheMaxNum", "userCacheExpiredSecond", "userCacheRefreshSecond"),
                *("aclCacheMaxNum", "aclCacheExpiredSecond", "aclCacheRefreshSecond"),
                *("statefulAuthenticationCacheMaxNum", "statefulAuthenticationCacheExpiredSecond"),
                *("statefulAuthorizationCacheMaxNum", "statefulAuthorizationCacheExpiredSecond"),
            ),
            "users and policies are in memory, and what was decided is forgotten when they change",
        ),
        "storePathCommitLog": "everything lies below storePathRootDir",
    }
)
"""Property -> why it has no effect. They are accepted so that a broker.conf of RocketMQ works unchanged."""
