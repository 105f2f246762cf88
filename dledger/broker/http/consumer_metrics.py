"""Metrics of consumer groups: how far they are behind, and whether their members have the same subscriptions
and different client ids. The number of groups is limited, because the page /metrics is made on the event
loop."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from dledger.broker.broker import Broker

MAX_DISAGREEING = 100
"""Largest number of consumer groups that are shown because their members differ; further ones are left
out."""
MAX_LAGS = 1000
"""Largest number of pairs of group and topic whose backlog is shown; further ones are left out."""
MAX_LAG_QUEUES = 10_000
"""Largest number of queues from which the backlogs are computed, about 4 ms. Groups that would exceed it are
left out."""


def consumer_metrics(broker: Broker) -> Iterable[Metric]:
    """Yield all metrics of consumer groups."""
    yield from _disagreements(broker)
    yield from _lags(broker)


def _disagreements(broker: Broker) -> Iterable[Metric]:
    differ = GaugeMetricFamily(
        "dledger_consumer_group_subscriptions",
        "Different sets of subscriptions among the members of a consumer group, if they disagree",
        labels=["group"],
    )
    shared = GaugeMetricFamily(
        "dledger_consumer_group_shared_client_ids",
        "Client ids that more than one consumer of a group uses, if there are any",
        labels=["group"],
    )
    for name, group in broker.core.clients.consumers.items():
        agreement = group.agreement
        if agreement.variants > 1 and len(differ.samples) < MAX_DISAGREEING and group.warning:
            differ.add_metric([name], agreement.variants)
        if agreement.shared and len(shared.samples) < MAX_DISAGREEING:
            shared.add_metric([name], len(agreement.shared))
    yield differ
    yield shared


def _lags(broker: Broker) -> Iterable[Metric]:
    """Yield the numbers of messages that consumer groups have not consumed yet. Groups with connected
    consumers come first. Only the leader shows them."""
    lag = GaugeMetricFamily(
        "dledger_consumer_lag_messages",
        "Messages of a topic that a consumer group has not consumed yet",
        labels=["group", "topic"],
    )
    held = GaugeMetricFamily(
        "dledger_consumer_inflight_messages",
        "Messages of a topic that a consumer group has pulled from this leader and not consumed yet",
        labels=["group", "topic"],
    )
    state, queues = broker.store.state, broker.store.queues
    looked_at = left_out = 0
    groups = dict.fromkeys([*broker.core.clients.consumers, *state.offsets])
    if broker.gate.writer is None:
        groups = {}  # otherwise every node of the group would show them
    for group in groups:
        rows = state.offsets.get(group, {})
        if looked_at + len(rows) > MAX_LAG_QUEUES or len(lag.samples) >= MAX_LAGS:
            left_out += bool(rows)
            continue
        looked_at += len(rows)
        behind: dict[str, int] = {}
        pulled: dict[str, int] = {}
        for (topic, queue_id), offset in rows.items():
            low, high = queues.range_of(topic, queue_id)
            behind[topic] = behind.get(topic, 0) + max(0, high - max(offset, low))
            ahead = broker.features.offset.pull_offsets.shown(group, topic, queue_id, offset) - offset
            pulled[topic] = pulled.get(topic, 0) + ahead
        for topic, messages in behind.items():
            lag.add_metric([group, topic], messages)
            held.add_metric([group, topic], pulled[topic])
    yield lag
    yield held
    yield GaugeMetricFamily(
        "dledger_consumer_groups_without_lag",
        "Consumer groups that dledger_consumer_lag_messages leaves out",
        value=left_out,
    )
