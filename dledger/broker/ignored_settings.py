"""RocketMQ's properties that a broker accepts in its file but ignores, with what replaces them."""

from __future__ import annotations

from types import MappingProxyType

IGNORED = MappingProxyType(
    {
        "brokerId": "the leader is elected: it registers with id 0, a follower with the number in "
        "its dLegerSelfId",
        "brokerRole": "the leader is elected",
        "brokerIP2": "brokers replicate over the addresses in dLegerPeers",
        "haListenPort": "brokers replicate over the addresses in dLegerPeers",
        "mappedFileSizeCommitLog": "the size of a segment is mapedFileSizeCommitLog, with one p",
        "flushConsumerOffsetHistoryInterval": "consumer offsets are in the replicated log",
        "sendMessageThreadPoolNums": "one event loop handles all messages",
        "queryMessageThreadPoolNums": "one event loop handles all requests",
        **dict.fromkeys(
            (
                *("userCacheMaxNum", "userCacheExpiredSecond", "userCacheRefreshSecond"),
                *("aclCacheMaxNum", "aclCacheExpiredSecond", "aclCacheRefreshSecond"),
                *("statefulAuthenticationCacheMaxNum", "statefulAuthenticationCacheExpiredSecond"),
                *("statefulAuthorizationCacheMaxNum", "statefulAuthorizationCacheExpiredSecond"),
            ),
            "users and policies are kept in memory, and cached decisions are dropped when they change",
        ),
        "storePathCommitLog": "all files of the store are below storePathRootDir",
    }
)
"""Maps a property to the reason why it has no effect. These properties are accepted so that a broker.conf of
RocketMQ works unchanged."""
