"""Sends a failed message back to the broker, which delivers it to the group again later (request 36
CONSUMER_SEND_MSG_BACK)."""

from __future__ import annotations

from dledger.client.consuming.consumer_options import ConsumerOptions, reconsume_limit
from dledger.client.core import ClientCore
from dledger.client.errors import ClientError
from dledger.client.message import ReceivedMessage
from dledger.client.namespaces import with_namespace
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import ConsumerSendMsgBackHeader

BROKERS_CHOICE = 0
"""Delay level that leaves the delay to the broker. The delay is 10 s at first and longer each time; in the
end the message becomes a dead letter."""
DELAYS_S = (1, 5, 10, 30, *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)))
"""The delays of levels 1 to 18 in seconds, with the default value of the brokers' `messageDelayLevel`."""
DEAD_LETTER = -1
"""Delay level that moves a message to the dead letters at once."""


def level_of(delay_s: float) -> int:
    """The first delay level that lasts at least this many seconds, or the last level (2 h) if none does.
    Raises ClientError for a negative number."""
    if not delay_s >= 0:
        raise ClientError(f"delay={delay_s!r}: give seconds, 0 or more")
    return next((level for level, lasts_s in enumerate(DELAYS_S, 1) if lasts_s >= delay_s), len(DELAYS_S))


class SendBack:
    """Sends messages of one consumer back to their brokers."""

    def __init__(self, core: ClientCore, consumer_group: str, options: ConsumerOptions) -> None:
        self._core = core
        self._group = consumer_group
        self._options = options
        self._unsupported: dict[str, None] = {}  # brokers that do not take messages back

    def supported(self, message: ReceivedMessage) -> bool:
        """Whether the message's broker takes messages back, as far as this client knows."""
        return message.queue.broker_name not in self._unsupported

    async def send(self, message: ReceivedMessage, delay_level: int = BROKERS_CHOICE) -> bool:
        """Send a message back. Returns False if the broker did not take it; the reason is logged."""
        broker = message.queue.broker_name
        if broker in self._unsupported:
            return False
        header = ConsumerSendMsgBackHeader(
            offset=message.physical_offset,
            group=self._group,
            delayLevel=delay_level,
            originMsgId=message.offset_message_id,
            originTopic=with_namespace(message.topic, self._core.options.namespace),
            maxReconsumeTimes=reconsume_limit(self._options, orderly=False),
        )
        try:
            answer = await self._core.invoke_leader(
                self._core.group(broker), message.queue.topic, RequestCode.CONSUMER_SEND_MSG_BACK, header
            )
        except ClientError as error:
            self._core.log.warning("message not sent back", error=error, **message_name(message))
            return False
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._core.log.info(
                "broker accepts no messages sent back: retrying in this client", broker=broker
            )
            self._unsupported[broker] = None
        elif answer.code != ResponseCode.SUCCESS:
            self._core.log.warning("message not sent back", code=answer.code, remark=answer.remark)
        return answer.code == ResponseCode.SUCCESS


def message_name(message: ReceivedMessage) -> dict[str, object]:
    """Fields that identify a message in the log, without its content. `attempt` is 1 at the first
    delivery."""
    return {
        "message_id": message.message_id,
        "queue": message.queue,
        "offset": message.queue_offset,
        "attempt": message.reconsume_times + 1,
    }
