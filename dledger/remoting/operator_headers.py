"""Headers of requests that operators and their tools send to brokers, and that brokers send to consumers on
their behalf. They are typed as those in `headers`."""

from __future__ import annotations

from dledger.remoting.response_headers import I32, I64, Header


class CloneGroupOffsetHeader(Header):
    """314 CLONE_GROUP_OFFSET. Without a topic the offsets of all topics are cloned."""

    srcGroup: str
    destGroup: str
    topic: str | None = None
    offline: bool = False


class RunningInfoHeader(Header):
    """Header of 307 GET_CONSUMER_RUNNING_INFO."""

    consumerGroup: str
    clientId: str
    jstackEnable: bool = False


class ConsumeDirectlyHeader(Header):
    """309 CONSUME_MESSAGE_DIRECTLY. `msgId` is an offset message id. The broker fills in the fields below
    it."""

    consumerGroup: str
    clientId: str | None = None
    msgId: str | None = None
    brokerName: str | None = None
    topic: str | None = None
    topicSysFlag: I32 | None = None
    groupSysFlag: I32 | None = None


class ConsumerStatusHeader(Header):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS. `clientAddr` is the id of one client; empty means all
    clients."""

    topic: str
    group: str
    clientAddr: str | None = None


class ConsumerStatusOfClientHeader(Header):
    """Header of 221 GET_CONSUMER_STATUS_FROM_CLIENT."""

    topic: str
    group: str


class BrokerConsumeStatsHeader(Header):
    """317 GET_BROKER_CONSUME_STATS. `isOrder` selects only ordered topics."""

    isOrder: bool


class ViewBrokerStatsHeader(Header):
    """Header of 315 VIEW_BROKER_STATS_DATA."""

    statsName: str
    statsKey: str


class ConsumeTimeSpanHeader(Header):
    """Header of 303 QUERY_CONSUME_TIME_SPAN."""

    topic: str
    group: str


class GroupTopicHeader(Header):
    """Header of 345 QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str | None = None


class CorrectionOffsetHeader(Header):
    """Header of 308 QUERY_CORRECTION_OFFSET. `filterGroups` holds names, separated by commas."""

    compareGroup: str
    topic: str
    filterGroups: str | None = None


class UserHeader(Header):
    """3001 AUTH_CREATE_USER, 3002 AUTH_UPDATE_USER, 3003 AUTH_DELETE_USER, 3004 AUTH_GET_USER."""

    username: str = ""
    version: I64 | None = None
    """An extension of ours: the field `version` of the answer on which the change is based. The change is
    refused if users or policies were changed since then."""


class ListUsersHeader(Header):
    """3005 AUTH_LIST_USER. `filter` is a text that the name must contain."""

    filter: str | None = None


class SubjectHeader(Header):
    """3006 AUTH_CREATE_ACL, 3007 AUTH_UPDATE_ACL, 3009 AUTH_GET_ACL. `subject` is `User:` followed by a
    name."""

    subject: str = ""
    version: I64 | None = None
    """An extension of ours, with the same meaning as in `UserHeader`."""


class DeleteAclHeader(Header):
    """3008 AUTH_DELETE_ACL. Without a resource all policies of the subject are deleted."""

    subject: str = ""
    policyType: str | None = None
    resource: str | None = None
    version: I64 | None = None
    """An extension of ours, with the same meaning as in `UserHeader`."""


class ListAclsHeader(Header):
    """3010 AUTH_LIST_ACL. The filters are texts that the subject and the resource must contain."""

    subjectFilter: str | None = None
    resourceFilter: str | None = None
