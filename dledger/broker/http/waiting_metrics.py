"""Figures of messages that wait: for their delay, for their time, for the end of their transaction. What is
counted since the start is what this node did as leader."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from dledger.broker.broker import Broker


def waiting_metrics(broker: Broker) -> Iterable[Metric]:
    """All of them."""
    delays, timers, transactions = broker.delays, broker.timers, broker.transactions
    gauges = (
        ("timers_waiting", "On the leader: messages that wait for their time, about", timers.waiting),
        ("transactions_open", "Transactions that are not ended", transactions.open),
    )
    counters = (
        ("delayed_delivered", "Messages with a delay level that came", delays.delivered),
        ("delayed_dropped", "Messages with a delay level that could not come", delays.dropped),
        ("timers_delivered", "Messages that came at their time", timers.delivered),
        ("timers_recalled", "Messages that were recalled before their time", timers.recalled),
        ("timers_rolled", "Messages and recalls that were put into the log again", timers.rolled),
        ("timers_dropped", "Messages whose time came, and that could not come", timers.dropped),
        ("transaction_checks", "Producers asked how a transaction ends", transactions.asked),
        ("transactions_discarded", "Transactions that nobody ended", transactions.discarded),
        (
            "transactions_lost",
            "Half messages gone before their transaction ended",
            transactions.lost,
        ),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(f"dledger_{name}", text, value=value)
    for name, text, value in counters:
        yield CounterMetricFamily(f"dledger_{name}", text, value=value)
