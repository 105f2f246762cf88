"""Transactions, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.core import CheckNeeded, Core, Members
from dledger.broker.feature import Feature
from dledger.broker.figures import Figure
from dledger.broker.forwarding import Origins
from dledger.broker.transaction.check_relay import CheckRelay, Elsewhere
from dledger.broker.transaction.check_service import TransactionCheckService
from dledger.broker.transaction.end_processor import EndTransactionProcessor
from dledger.remoting.client import RemotingClient


class TransactionFeature(Feature):
    """Half messages, the requests that end their transactions, and the checks of transactions that are not
    ended."""

    def __init__(
        self,
        core: Core,
        client: RemotingClient,
        members: Members,
        origins: Origins,
        check_needed: CheckNeeded,
    ) -> None:
        self.checks: TransactionCheckService = TransactionCheckService(core, Elsewhere(core, client, members))
        self.processors = (EndTransactionProcessor(core, check_needed), CheckRelay(core, origins))
        self.services = (self.checks,)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        checks = self.checks
        yield Figure(lambda: checks.open, "Open transactions", "transactions_open", "openTransactions")
        yield Figure(
            lambda: checks.asked,
            "Producers asked how a transaction ends",
            "transaction_checks",
            "askedTransactions",
            counts=True,
        )
        yield Figure(
            lambda: checks.discarded,
            "Transactions that the broker cancelled, as no producer ended them",
            "transactions_discarded",
            "discardedTransactions",
            counts=True,
        )
        yield Figure(
            lambda: checks.lost,
            "Half messages that were lost before their transaction ended",
            "transactions_lost",
            counts=True,
        )
