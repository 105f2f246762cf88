"""Headers of requests from operators and their tools to brokers, and from brokers to consumers (as
`headers`)."""

from __future__ import annotations

from dledger.remoting.response_headers import I32, I64, Header


class CloneGroupOffsetHeader(Header):
    """314 CLONE_GROUP_OFFSET; without a topic for all topics."""

    srcGroup: str
    destGroup: str
    topic: str | None = None
    offline: bool = False


class RunningInfoHeader(Header):
    """307 GET_CONSUMER_RUNNING_INFO."""

    consumerGroup: str
    clientId: str
    jstackEnable: bool = False


class ConsumeDirectlyHeader(Header):
    """309 CONSUME_MESSAGE_DIRECTLY. `msgId` is an offset message id; the broker fills in the fields after
    it."""

    consumerGroup: str
    clientId: str | None = None
    msgId: str | None = None
    brokerName: str | None = None
    topic: str | None = None
    topicSysFlag: I32 | None = None
    groupSysFlag: I32 | None = None


class ConsumerStatusHeader(Header):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS. `clientAddr`: id of one client; empty for all."""

    topic: str
    group: str
    clientAddr: str | None = None


class ConsumerStatusOfClientHeader(Header):
    """221 GET_CONSUMER_STATUS_FROM_CLIENT."""

    topic: str
    group: str


class BrokerConsumeStatsHeader(Header):
    """317 GET_BROKER_CONSUME_STATS. `isOrder`: only of ordered topics."""

    isOrder: bool


class ViewBrokerStatsHeader(Header):
    """315 VIEW_BROKER_STATS_DATA."""

    statsName: str
    statsKey: str


class ConsumeTimeSpanHeader(Header):
    """303 QUERY_CONSUME_TIME_SPAN."""

    topic: str
    group: str


class GroupTopicHeader(Header):
    """345 QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str | None = None


class CorrectionOffsetHeader(Header):
    """308 QUERY_CORRECTION_OFFSET. `filterGroups`: names separated by commas."""

    compareGroup: str
    topic: str
    filterGroups: str | None = None


class UserHeader(Header):
    """3001 to 3004 AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER."""

    username: str = ""
    version: I64 | None = None
    """An extension of ours: the field `version` of the answer that the change is based on. The change is
    refused when users or policies were changed since."""


class ListUsersHeader(Header):
    """3005 AUTH_LIST_USER. `filter`: text that the name must contain."""

    filter: str | None = None


class SubjectHeader(Header):
    """3006, 3007, 3009 AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_GET_ACL. `subject`: `User:` followed by a
    name."""

    subject: str = ""
    version: I64 | None = None
    """An extension of ours, as in `UserHeader`."""


class DeleteAclHeader(Header):
    """3008 AUTH_DELETE_ACL; without a resource all policies of the subject."""

    subject: str = ""
    policyType: str | None = None
    resource: str | None = None
    version: I64 | None = None
    """An extension of ours, as in `UserHeader`."""


class ListAclsHeader(Header):
    """3010 AUTH_LIST_ACL. Filters: texts that the subject, or the resource, must contain."""

    subjectFilter: str | None = None
    resourceFilter: str | None = None
