"""Recalling a message whose delivery time has not come (DefaultMQProducer.recallMessage)."""

from __future__ import annotations

from dledger.client.core import ClientCore
from dledger.client.errors import InvalidMessage
from dledger.formats.timers import RecallHandle
from dledger.remoting.codes import RequestCode
from dledger.remoting.headers import RecallMessageHeader


async def recall(core: ClientCore, group: str, topic: str, handle: str) -> str:
    """Ask the leader of the broker group that the handle names to recall a message. Returns the unique id of
    the message.

    An attempt without an answer is repeated, because a second recall changes nothing. Raises InvalidMessage
    for a bad handle, BrokerRefused, or NoBroker if no leader appears in time. Raises OutcomeUnknown if an
    attempt got no answer and no later one succeeded; then the message may have been recalled.
    """
    try:
        broker_name = RecallHandle.decode(handle).broker_name
    except (TypeError, ValueError) as error:
        raise InvalidMessage(f"{error}: give recall_handle of a SendResult") from error
    header = RecallMessageHeader(topic, handle, group, broker_name)
    leader_of = core.group(broker_name)
    answer = await core.change(leader_of, topic, RequestCode.RECALL_MESSAGE, header, f"recall in {topic!r}")
    return answer.ext.get("msgId", "")
