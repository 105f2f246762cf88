"""The table of all kinds of clients that a scenario may have. What a trial starts, what its checkers expect,
and the documentation follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dledger.chaos.scenarios.broker_clients import (
    ORDERLY_GROUP,
    PULL_GROUP,
    PUSH_GROUP,
    Operator,
    OrderlyWorker,
    Planned,
    Producer,
    Program,
    PushWorker,
)
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.ordered_history import ORDERED_GROUP
from dledger.chaos.scenarios.ordered_worker import OrderedWorker
from dledger.chaos.scenarios.plan import BROKER_PRODUCERS
from dledger.chaos.scenarios.pop_worker import PopWorker
from dledger.chaos.scenarios.unaware_reader import UNAWARE_GROUP, UnawareReader
from dledger.chaos.trials.log_reader import LogReader, LogStage
from dledger.chaos.trials.other_clients import TOPIC as OTHER_TOPIC
from dledger.chaos.trials.other_clients import GoClient, JavaClient, OtherStage
from dledger.chaos.trials.other_tools import TOOLS
from dledger.chaos.trials.probing import Probing
from dledger.chaos.trials.programs import PullAndEndReader, SlowWorker, TopicChurn, UserChanges


class EveryStage(OtherStage, LogStage, Protocol):
    """A trial as the programs of all kinds of clients see it."""


Make = Callable[[EveryStage, int, BrokerHistory, list[str]], Program]
"""Makes a program. The arguments are the trial, the number of the program, the history, and the topics that
may be used."""


@dataclass(frozen=True)
class ClientKind:
    """One kind of client. It has either `programs` or `planned` ones."""

    about: str
    """What it does, for tables."""
    programs: tuple[Make, ...] = ()
    """Its programs that have no operations in the plan."""
    planned: tuple[type[Planned], ...] = ()
    """Its programs that perform the operations of the plan."""
    first: int = 0
    """Number of the client in the plan whose operations the first planned program performs."""
    group: str = ""
    """Its consumer group, if this group must have received every message in the end."""
    topic: str = ""
    """The only topic that its group reads. If empty, the group reads all topics."""
    sends: bool = False
    """Whether every trial with it must have acknowledged messages."""
    endless: bool = False
    """Whether it would go on for ever. It is ended before the end phase."""

    sends_again: bool = False
    """Whether it sends a message again without our mark, so that the message may be stored twice."""
    keeps_id: bool = False
    """Whether what it sends again has the id of the first send, so that brokers recognise it in the topics of
    `duplicateCheckTopics`."""

    @property
    def count(self) -> int:
        """How many programs it has."""
        return len(self.programs) + len(self.planned)


CLIENTS: Mapping[str, ClientKind] = {
    "producers": ClientKind(
        "two producers: single messages, several at once, batches; some with a delay level, in transactions, "
        "or as timer messages",
        planned=(Producer, Producer),
        sends=True,
    ),
    "operator": ClientKind(
        "creates topics, gives them more queues, resets consumer offsets",
        planned=(Operator,),
        first=BROKER_PRODUCERS,
    ),
    "pull": ClientKind(
        "reads all queues, commits consumer offsets, and asks for them; asks for the end of one queue "
        "after the other",
        (PullAndEndReader,),
        group=PULL_GROUP,
    ),
    "push": ClientKind("two push consumers of one group", (PushWorker, PushWorker), group=PUSH_GROUP),
    "pop": ClientKind("two consumers that pop messages", (PopWorker, PopWorker)),
    "orderly": ClientKind(
        "two orderly consumers that take turns", (OrderlyWorker, OrderlyWorker), group=ORDERLY_GROUP
    ),
    "pop-orderly": ClientKind(
        "two consumers that pop messages in order", (OrderedWorker, OrderedWorker), group=ORDERED_GROUP
    ),
    "topics": ClientKind("creates, uses and deletes topics", (TopicChurn,), endless=True),
    "unaware": ClientKind(
        "a consumer that does not notice lost connections, like clients of other projects",
        (UnawareReader,),
        group=UNAWARE_GROUP,
    ),
    "probe": ClientKind("sends a small message every 5 ms", (Probing,), sends=True, endless=True),
    "push-slow": ClientKind(
        "two push consumers of one group that need 20 ms for each message",
        (SlowWorker, SlowWorker),
        group=PUSH_GROUP,
    ),
    "users": ClientKind("creates, changes and deletes users and policies", (UserChanges,), endless=True),
    "log": ClientKind(
        "reads the log itself (DLedger's client protocol): read points and entries, from the leader and from "
        "all other nodes",
        (LogReader,),
        endless=True,
    ),
    "java": ClientKind(
        "Apache RocketMQ's Java client: sends single messages, messages to a chosen queue and batches to one "
        "topic, and consumes it in order",
        (JavaClient,),
        group=JavaClient.group,
        topic=OTHER_TOPIC,
        sends=True,
        sends_again=True,
        keeps_id=True,
    ),
    "go": ClientKind(
        "the same with Apache RocketMQ's Go client",
        (GoClient,),
        group=GoClient.group,
        topic=OTHER_TOPIC,
        sends=True,
        sends_again=True,
    ),
}
"""All kinds of clients, by name."""


def kind_of(program: str) -> ClientKind:
    """The kind of a program with this name."""
    return CLIENTS[program.rpartition("-")[0]]


def missing_for(clients: Iterable[str]) -> str:
    """What must be installed on this machine before these kinds of clients can take part; an empty text if
    nothing is missing. May take some seconds."""
    return "; ".join(text for kind in clients if kind in TOOLS and (text := TOOLS[kind].missing()))
