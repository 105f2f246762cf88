"""Headers of what operators and their tools ask brokers, and brokers the consumers (as `headers`)."""

from __future__ import annotations

from dledger.remoting.response_headers import I32, I64, Header


class CloneGroupOffsetHeader(Header):
    """314 CLONE_GROUP_OFFSET; without topic of all topics."""

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
    """309 CONSUME_MESSAGE_DIRECTLY. `msgId`: an offset message id; what is behind it a broker fills in."""

    consumerGroup: str
    clientId: str | None = None
    msgId: str | None = None
    brokerName: str | None = None
    topic: str | None = None
    topicSysFlag: I32 | None = None
    groupSysFlag: I32 | None = None


class ConsumerStatusHeader(Header):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS. `clientAddr`: id of a client, or of all."""

    topic: str
    group: str
    clientAddr: str | None = None


class ConsumerStatusOfClientHeader(Header):
    """221 GET_CONSUMER_STATUS_FROM_CLIENT."""

    topic: str
    group: str


class BrokerConsumeStatsHeader(Header):
    """317 GET_BROKER_CONSUME_STATS. `isOrder`: of ordered topics alone."""

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
    """308 QUERY_CORRECTION_OFFSET. `filterGroups`: names with commas between."""

    compareGroup: str
    topic: str
    filterGroups: str | None = None


class UserHeader(Header):
    """3001 to 3004 AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER."""

    username: str = ""
    version: I64 | None = None
    """Ours: the field `version` of the answer that the change was made from. It is refused when users or
    policies were changed since."""


class ListUsersHeader(Header):
    """3005 AUTH_LIST_USER. `filter`: what a name has in it."""

    filter: str | None = None


class SubjectHeader(Header):
    """3006, 3007, 3009 AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_GET_ACL. `subject`: `User:` and a name."""

    subject: str = ""
    version: I64 | None = None
    """Ours, as in `UserHeader`."""


class DeleteAclHeader(Header):
    """3008 AUTH_DELETE_ACL; without a resource all of the subject's."""

    subject: str = ""
    policyType: str | None = None
    resource: str | None = None
    version: I64 | None = None
    """Ours, as in `UserHeader`."""


class ListAclsHeader(Header):
    """3010 AUTH_LIST_ACL. Filters: what a subject, or a resource, has in it."""

    subjectFilter: str | None = None
    resourceFilter: str | None = None
