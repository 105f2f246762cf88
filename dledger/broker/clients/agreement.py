"""Whether the members of a consumer group agree with each other.

Messages of a queue go to one member, and what it does not want is skipped for all. So two members that
subscribe differently lose messages in silence, as with RocketMQ. And two consumers with one client id take
each other for themselves: both get everything. Neither can be refused, as programs live with it; both are
said in the log, in the metrics and to the clients.
"""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.remoting.bodies import ConsumerData, subscription_codes

MAX_SHOWN = 3
"""Client ids, and topics, that a warning names."""
MAX_SHOWN_TEXT = 100
"""Characters of a subscription that a warning shows."""
Interests = frozenset[tuple[str, str]]
"""Topic and expression of each subscription; tags in order."""


def interests_of(data: ConsumerData) -> Interests:
    """What a member wants, without the retry topic of its group."""
    return frozenset(
        (one.topic, _expression(one.expressionType, one.subString))
        for one in data.subscriptionDataSet
        if not one.topic.startswith(RETRY_PREFIX)
    )


def _expression(kind: str, text: str) -> str:
    if kind != "TAG":
        return f"{kind} {text}"
    if "|" not in text:
        return text.strip() or "*"
    return " || ".join(subscription_codes(text)[0])


class Agreement:
    """Of one consumer group."""

    def __init__(self) -> None:
        self._wanted: dict[str, Interests] = {}
        """By client id."""
        self._variants: dict[Interests, int] = {}
        """Different wishes, and how many members have each: mostly one, which all members share."""
        self._left: dict[str, int] = {}
        """Client id -> connection that it came over before the present one."""
        self._shared: dict[str, None] = {}
        """Client ids that two open connections use in turns."""

    def wants(self, client_id: str, wanted: Interests) -> None:
        """A member's heartbeat said so."""
        before = self._wanted.get(client_id)
        if before == wanted:
            return
        if before is not None:
            self._drop(before)
        count = self._variants.pop(wanted, 0)
        self._wanted[client_id] = wanted
        self._variants[wanted] = count + 1

    def moved(self, client_id: str, before: int, now: int) -> None:
        """A client id comes over another connection than before. Back over the one that it left, which is
        open still: two clients have that id. (Once is a client that connected anew.)"""
        if self._left.get(client_id) == now:
            self._shared[client_id] = None
        self._left[client_id] = before

    def left(self, client_id: str) -> None:
        """A member is gone."""
        wanted = self._wanted.pop(client_id, None)
        if wanted is not None:
            self._drop(wanted)
        self._left.pop(client_id, None)
        self._shared.pop(client_id, None)

    @property
    def variants(self) -> int:
        """Different sets of subscriptions."""
        return len(self._variants)

    @property
    def shared(self) -> tuple[str, ...]:
        """Client ids of more than one client."""
        return tuple(self._shared)

    def warning(self, group: str, *, topics_apart: bool = False) -> str:
        """What is wrong, with client ids and the difference; empty when all is well. `topics_apart`: members
        may want different topics, as those do that pop: each asks for one topic alone."""
        texts = []
        if len(self._variants) > 1 and not (topics_apart and self._one_expression_a_topic()):
            one, other = sorted(self._variants, key=lambda wanted: -self._variants[wanted])[:2]
            texts.append(
                f"members of consumer group {group} subscribe differently, so that messages are lost to it: "
                f"{self._who(one)} {_shown(one - other)}, {self._who(other)} {_shown(other - one)}. Give all "
                "members of a group the same subscriptions"
            )
        if self._shared:
            texts.append(
                f"several consumers of group {group} have one client id, so that each gets what the others "
                f"get: {_listed(self._shared)}. Give each an instance name of its own"
            )
        return "; ".join(texts)

    def _one_expression_a_topic(self) -> bool:
        wanted = {interest for variant in self._variants for interest in variant}
        return len({topic for topic, _ in wanted}) == len(wanted)

    def _who(self, wanted: Interests) -> str:
        ids = [client_id for client_id, one in self._wanted.items() if one == wanted]
        return f"{_listed(ids)} {'wants' if len(ids) == 1 else 'want'}"

    def _drop(self, wanted: Interests) -> None:
        self._variants[wanted] -= 1
        if not self._variants[wanted]:
            del self._variants[wanted]


def _shown(wanted: Interests) -> str:
    texts = [f"{topic} {expression}"[:MAX_SHOWN_TEXT] for topic, expression in sorted(wanted)]
    return _listed(texts) if texts else "nothing of that"


def _listed(texts: Iterable[str]) -> str:
    names = list(texts)
    more = len(names) - MAX_SHOWN
    return ", ".join(names[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
