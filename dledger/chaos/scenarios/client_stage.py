"""What the programs of client machines need to know of the run in which they take part.

The same programs run on simulated machines (`broker_stage`) and against groups of real processes
(`dledger.chaos.trials`). They use only this interface, so a history means the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dledger.chaos.scenarios.broker_replay import Stored
from dledger.chaos.scenarios.marks import Marks
from dledger.chaos.scenarios.oracle import Queue

BROKER_NAME = "broker-a"
"""Name of the broker group (`brokerName`) in every run that starts its own group."""


class ClientStage(Protocol):
    """The run of a client program, as the program sees it."""

    marks: Marks
    """Rare events that this run has seen."""
    measured: bool
    """Whether the run measures how fast messages are delivered. Meanwhile consumers do nothing that takes
    long, such as commits."""
    begun: int
    """The latest position at which the log of any broker has begun so far. Earlier messages may no longer be
    readable."""
    elections: int
    """How many leaders were elected so far."""

    @property
    def client_names(self) -> Sequence[str]:
        """Names of the client machines, by number."""

    @property
    def namesrv_addr(self) -> str:
        """Addresses of the NameServers, `host:port` each, separated by `;`."""

    @property
    def broker_name(self) -> str:
        """Name of the broker group (`brokerName`) that holds the topics of this run."""

    @property
    def namespace(self) -> str:
        """The namespace of all topics and consumer groups of this run at the brokers; empty for none. The
        history has names without it."""

    @property
    def resets_in_order(self) -> bool:
        """Whether the operator also resets the group that pops in order."""

    def client_address(self, name: str) -> str:
        """The IP address of a client machine."""

    def client_now(self, name: str) -> int:
        """The time of the run as a client machine sees it, in ns. All machines share one time."""

    def client_runs(self, name: str) -> bool:
        """Whether the program of a client machine runs."""

    def leader_term(self) -> int:
        """The term of the serving leader. -1 while no leader serves."""

    def committed_messages(self) -> Mapping[Queue, Sequence[Stored]]:
        """The messages that are committed so far, by queue. Empty if the run learns them only at its end."""
