"""Recalling a message whose delivery time has not come (DefaultMQProducer.recallMessage)."""

from __future__ import annotations

from dledger.client.core import ClientCore
from dledger.client.errors import InvalidMessage
from dledger.formats.timers import RecallHandle
from dledger.remoting.codes import RequestCode
from dledger.remoting.headers import RecallMessageHeader


async def recall(core: ClientCore, group: str, topic: str, handle: str) -> str:
    """Ask the leader of the broker group that the handle names; returns the unique id of the message.

    An attempt without an answer is repeated: a second recall changes nothing. InvalidMessage for a bad
    handle, BrokerRefused, NoBroker when no leader appears in time. OutcomeUnknown when an attempt got no
    answer and no later one succeeded: the message may be recalled.
    """
    try:
        broker_name = RecallHandle.decode(handle).broker_name
    except (TypeError, ValueError) as error:
        raise InvalidMessage(f"{error}: give recall_handle of a SendResult") from error
    header = RecallMessageHeader(topic, handle, group, broker_name)
    leader_of = core.group(broker_name)
    answer = await core.change(leader_of, topic, RequestCode.RECALL_MESSAGE, header, f"recall in {topic!r}")
    return answer.ext.get("msgId", "")
