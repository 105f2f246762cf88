"""Whether the members of a consumer group have the same subscriptions and different client ids.

Messages of a queue go to one member, and those that it does not subscribe to are skipped for the whole group.
So if two members subscribe differently, messages are lost without any error, as with RocketMQ. If two
consumers have the same client id, each takes the other for itself, and both get all messages. Neither can be
refused, because existing programs depend on it. Both are reported in the log, in the metrics and to the
clients.
"""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.remoting.bodies import ConsumerData, subscription_codes

MAX_SHOWN = 3
"""At most this many client ids, and as many topics, are named in a warning; further ones are counted."""
MAX_SHOWN_TEXT = 100
"""A subscription in a warning is cut to this many characters."""
Interests = frozenset[tuple[str, str]]
"""Topic and expression of each subscription; tags are sorted."""


def interests_of(data: ConsumerData) -> Interests:
    """The subscriptions of a member, without the retry topic of its group."""
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
    """The members of one consumer group, compared with each other."""

    def __init__(self) -> None:
        self._wanted: dict[str, Interests] = {}
        """Subscriptions by client id."""
        self._variants: dict[Interests, int] = {}
        """Different sets of subscriptions, and how many members have each. Mostly there is one, which all
        members share."""
        self._left: dict[str, int] = {}
        """Client id -> serial of the connection that it used before the present one."""
        self._shared: dict[str, None] = {}
        """Client ids that two open connections use alternately."""

    def wants(self, client_id: str, wanted: Interests) -> None:
        """Note the subscriptions of a member's heartbeat."""
        before = self._wanted.get(client_id)
        if before == wanted:
            return
        if before is not None:
            self._drop(before)
        count = self._variants.pop(wanted, 0)
        self._wanted[client_id] = wanted
        self._variants[wanted] = count + 1

    def moved(self, client_id: str, before: int, now: int) -> None:
        """A client id moved to another connection. If it moves back to the connection that it left and that
        is still open, two clients share the id. (A single move is a client that connected again.)"""
        if self._left.get(client_id) == now:
            self._shared[client_id] = None
        self._left[client_id] = before

    def left(self, client_id: str) -> None:
        """Remove a member that is gone."""
        wanted = self._wanted.pop(client_id, None)
        if wanted is not None:
            self._drop(wanted)
        self._left.pop(client_id, None)
        self._shared.pop(client_id, None)

    @property
    def variants(self) -> int:
        """How many different sets of subscriptions there are."""
        return len(self._variants)

    @property
    def shared(self) -> tuple[str, ...]:
        """Client ids that more than one client uses."""
        return tuple(self._shared)

    def warning(self, group: str, *, topics_apart: bool = False) -> str:
        """A text with the problem, the client ids and the difference; empty if there is none. `topics_apart`:
        members may subscribe to different topics, as pop consumers do, each of which names only one topic."""
        texts = []
        if len(self._variants) > 1 and not (topics_apart and self._one_expression_a_topic()):
            one, other = sorted(self._variants, key=lambda wanted: -self._variants[wanted])[:2]
            texts.append(
                f"members of consumer group {group} have different subscriptions, so the group misses "
                f"messages: {self._who(one)} {_shown(one - other)}, {self._who(other)} "
                f"{_shown(other - one)}. Give all members of a group the same subscriptions"
            )
        if self._shared:
            texts.append(
                f"several consumers of group {group} share one client id, so each of them receives "
                f"the same messages: {_listed(self._shared)}. Give each consumer its own instance name"
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
    return _listed(texts) if texts else "none of these"


def _listed(texts: Iterable[str]) -> str:
    names = list(texts)
    more = len(names) - MAX_SHOWN
    return ", ".join(names[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
