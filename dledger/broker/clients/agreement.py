"""Checks whether the members of a consumer group have the same subscriptions and different client ids.

The messages of a queue go to one member of the group. If this member does not subscribe to a message, the
message is skipped for the whole group. So if two members subscribe differently, messages are lost without any
error, as with RocketMQ. If two consumers have the same client id, each regards the other as itself, and both
get all messages. The broker cannot refuse either mistake, because existing programs depend on it. It reports
both mistakes in the log, in the metrics and to the clients.
"""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.remoting.bodies import ConsumerData, subscription_codes

MAX_SHOWN = 3
"""Largest number of client ids, and of topics, that a warning names; further ones are only counted."""
MAX_SHOWN_TEXT = 100
"""Limit, in characters, of a subscription in a warning; a longer one is cut."""
Interests = frozenset[tuple[str, str]]
"""The subscriptions of one member: pairs of a topic and an expression, in which the tags are sorted."""


def interests_of(data: ConsumerData) -> Interests:
    """Return the subscriptions of a member, without that to the retry topic of its group."""
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
    """The subscriptions and client ids of one consumer group's members, which are compared with each
    other."""

    def __init__(self) -> None:
        self._wanted: dict[str, Interests] = {}
        """Maps a client id to the subscriptions of that member."""
        self._variants: dict[Interests, int] = {}
        """Maps each different set of subscriptions to the number of members that have it. In most groups
        there is only one set."""
        self._left: dict[str, int] = {}
        """Maps a client id to the serial number of the connection that it used before the present
        connection."""
        self._shared: dict[str, None] = {}
        """Client ids that are used alternately over two open connections, so that two clients must have
        them."""

    def wants(self, client_id: str, wanted: Interests) -> None:
        """Note the subscriptions in a member's heartbeat."""
        before = self._wanted.get(client_id)
        if before == wanted:
            return
        if before is not None:
            self._drop(before)
        count = self._variants.pop(wanted, 0)
        self._wanted[client_id] = wanted
        self._variants[wanted] = count + 1

    def moved(self, client_id: str, before: int, now: int) -> None:
        """Note that a client id has moved from the connection `before` to the connection `now`. If it moves
        back to a connection that it had left and that is still open, two clients share the id. (A single move
        is a client that has reconnected.)"""
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
        """Client ids that several clients use at the same time."""
        return tuple(self._shared)

    def warning(self, group: str, *, topics_apart: bool = False) -> str:
        """Return a text that describes the problem, names client ids and shows the difference. It is empty if
        there is no problem. `topics_apart` allows members to subscribe to different topics. Pop consumers
        need this, because each of them names only one topic."""
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
