"""Formats the state that a consumer reports (ConsumerRunningInfo) as Apache's mqadmin shows it, and finds
problems in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from dledger.remoting.operator_bodies import RunningInfo

SETTLED_MS = 120_000
"""The subscriptions of a group's consumers are compared only if the first consumer started longer ago than
this, in ms."""
STUCK_MS = 60_000
"""If a message waits in a consumer for longer than this, in ms, its queue may be stuck."""


def info_text(info: RunningInfo) -> str:
    """Return the whole state of a consumer as text."""
    lines = ["#Consumer Properties#"]
    lines += [f"{key:<40}: {value}" for key, value in sorted(info.properties.items())]
    lines += ["", "", "#Consumer Subscription#"]
    for number, one in enumerate(info.subscriptions, 1):
        mode = str(one.classFilterMode).lower()
        lines.append(
            f"{number:03d} Topic: {one.topic:<40} ClassFilter: {mode:<8} SubExpression: {one.subString}"
        )
    lines += ["", "", "#Consumer Offset#", _queue_head("#Consumer Offset")]
    for queue, held in info.queues.items():
        lines.append(
            f"{queue.topic:<32}  {queue.brokerName:<32}  {queue.queueId:<4}  {held.commitOffset:<20}"
        )
    lines += ["", "", "#Consumer MQ Detail#", _queue_head("#ProcessQueueInfo")]
    for queue, held in info.queues.items():
        text = f"ProcessQueueInfo [{_fields(held)}]"
        lines.append(f"{queue.topic:<64}  {queue.brokerName:<32}  {queue.queueId:<4}  {text}")
    lines += ["", "", "#Consumer Pop Detail#", _queue_head("#ProcessQueueInfo", 32)]
    for queue, popped in info.pop_queues.items():
        text = f"PopProcessQueueInfo [{_fields(popped)}]"
        lines.append(f"{queue.topic:<32}  {queue.brokerName:<32}  {queue.queueId:<4}  {text}")
    lines += ["", "", "#Consumer RT&TPS#"]
    lines.append(
        f"{'#Topic':<64}  {'#Pull RT':>14} {'#Pull TPS':>14} {'#Consume RT':>14} {'#ConsumeOK TPS':>14} "
        f"{'#ConsumeFailed TPS':>18} {'#ConsumeFailedMsgsInHour':>25}"
    )
    for topic, row in sorted(info.status.items()):
        lines.append(
            f"{topic:<32}  {row.pullRT:14.2f} {row.pullTPS:14.2f} {row.consumeRT:14.2f} "
            f"{row.consumeOKTPS:14.2f} {row.consumeFailedTPS:18.2f} {row.consumeFailedMsgs:25d}"
        )
    lines += ["", "", "#User Consume Info#"]
    lines += [f"{key:<40}: {value}" for key, value in sorted(info.user_info.items())]
    if info.jstack is not None:
        lines += ["", "", "#Consumer jstack#", info.jstack]
    return "\n".join(lines)


def _queue_head(last: str, width: int = 64) -> str:
    return f"{'#Topic':<{width}}  {'#Broker Name':<32}  {'#QID':<4}  {last:<20}"


def _fields(held: msgspec.Struct) -> str:
    pairs = msgspec.to_builtins(held).items()
    return ", ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in pairs
    )


class Problems:
    """Problems of the consumers of one group, as texts by client id."""

    def __init__(self, infos: Mapping[str, RunningInfo], now_ms: int) -> None:
        self._infos = dict(sorted(infos.items()))
        self._now_ms = now_ms

    @property
    def same_subscription(self) -> bool:
        """Return whether all push consumers of the group have the same subscription; if not, the group
        loses messages."""
        first = next(iter(self._infos.values()))
        text = first.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
        started = int(text) if text.isdecimal() else 0
        if not first.push or self._now_ms - started <= SETTLED_MS:
            return True
        wanted = _subscribed(first)
        return all(_subscribed(info) == wanted for info in self._infos.values())

    def stuck_queues(self) -> Iterator[str]:
        """Return the queues that are not consumed although they could be."""
        for client, info in self._infos.items():
            if not info.push:
                continue
            ordered = info.properties.get("PROP_CONSUMEORDERLY", "false") == "true"
            for queue, held in info.queues.items():
                names = f"topic={queue.topic}, brokerName={queue.brokerName}"
                where = f"MessageQueue [{names}, queueId={queue.queueId}]"
                waited_ms = self._now_ms - held.lastConsumeTimestamp
                if ordered and not held.locked:
                    unlocked_ms = self._now_ms - held.lastLockTimestamp
                    yield f"{client} {where} can't lock for a while, {unlocked_ms}ms"
                elif ordered and held.droped and held.tryUnlockTimes > 0:
                    yield f"{client} {where} unlock {held.tryUnlockTimes} times, still failed"
                elif not ordered and waited_ms > STUCK_MS and held.cachedMsgCount > 0:
                    yield f"{client} {where} can't consume for a while, maybe blocked, {waited_ms}ms"


def _subscribed(info: RunningInfo) -> list[tuple[str, str]]:
    return sorted((one.topic, one.subString) for one in info.subscriptions)
