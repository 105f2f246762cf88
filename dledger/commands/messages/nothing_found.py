"""Says why `dledger consume` printed no message: the topic has none, or none passes the filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dledger.client import AsyncPullConsumer, MessageQueue, ReceivedMessage

SAMPLE = 32
"""How many of the newest messages of each queue are looked at, to show which tags and keys there are."""
SAMPLED_QUEUES = 16
"""Largest number of queues that are looked at for it."""
SAMPLE_WAIT_S = 2.0
"""Longest wait for one of these messages, in seconds."""
SHOWN = 10
"""Largest number of tags or keys that are shown."""

Ranges = Mapping[MessageQueue, tuple[int, int]]
"""The offsets of each queue that were looked at: its first one, and the one behind its last."""


def without_messages(topic: str, start: str, group: str | None) -> str:
    """Return the text for a topic of which nothing was to be printed."""
    if group is not None:
        return f"group {group} has consumed all stored messages of topic {topic}"
    if start == "latest":
        return (
            f"--from latest begins behind the stored messages of topic {topic}: add --follow to see new ones"
        )
    return f"topic {topic} has no stored messages" + ("" if start == "earliest" else f" from {start} on")


async def none_matches(
    sampler: AsyncPullConsumer, topic: str, ranges: Ranges, tag: str, key: str | None
) -> str:
    """Return the text for a topic of which no message has the wanted tags and the wanted key. It shows what
    some of the newest messages have. `sampler`: a consumer without subscriptions. Raises ClientError."""
    count = sum(end - first for first, end in ranges.values())
    filters = [f"--tag {tag!r}"] * (tag != "*") + ([] if key is None else [f"--key {key!r}"])
    sampled = await _newest(sampler, ranges)
    found = []
    if tag != "*":
        found.append(_shown("tags", (one.tags or "none" for one in sampled)))
    if key is not None:
        found.append(_shown("keys", (known for one in sampled for known in one.keys or ("none",))))
    what = "the only stored message" if count == 1 else f"none of the {count:,} stored messages"
    verb = "does not pass" if count == 1 else "passes"
    return f"{what} of topic {topic} {verb} {' and '.join(filters)}; the newest have {', '.join(found)}"


async def _newest(sampler: AsyncPullConsumer, ranges: Ranges) -> Sequence[ReceivedMessage]:
    """Return some of the newest messages of the queues that have any."""
    firsts = {queue: max(first, end - SAMPLE) for queue, (first, end) in ranges.items() if first < end}
    chosen = dict(sorted(firsts.items())[:SAMPLED_QUEUES])
    await sampler.assign(list(chosen))
    for queue, first in chosen.items():
        await sampler.seek(queue, first)
    found: list[ReceivedMessage] = []
    while any(sampler.position(queue) < ranges[queue][1] for queue in chosen):
        some = await sampler.poll(SAMPLE_WAIT_S)
        if not some:
            break
        found += some
    return found


def _shown(what: str, values: Iterable[str]) -> str:
    found = sorted(dict.fromkeys(values))
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"the {what} {', '.join(found[:SHOWN])}{more}"
