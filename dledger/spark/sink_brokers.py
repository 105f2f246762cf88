"""Asks brokers, before a write with `exactlyOnce`, whether they recognise messages that are sent again."""

from __future__ import annotations

import warnings
from contextlib import suppress

from dledger.client import TopicNotFound
from dledger.client.bulk.range_puller import RangePuller
from dledger.client.bulk.ranges import RangeOptions
from dledger.spark.option_values import BadOption
from dledger.spark.sink_options import SinkOptions

CONSUMER_GROUP = "SPARK_SINK"


def check_brokers(options: SinkOptions) -> None:
    """Ask all brokers of the topic, or of the cluster if a column names the topics or if the topic does not
    exist yet.

    Raises BadOption if a broker cannot recognise messages that are sent again. Warns if a broker did not
    answer or does not show its settings. Raises ClientError if no NameServer answers.
    """
    known = RangeOptions(CONSUMER_GROUP, client=options.access.client())
    with RangePuller(options.servers, known) as puller:
        groups: list[str] = []
        if options.topic:
            with suppress(TopicNotFound):
                groups = [queue.broker_name for queue in puller.queues(options.topic)]
        answers = puller.recognise_resends(groups or puller.broker_groups())
    without = sorted(address for address, found in answers.items() if found is False)
    if without:
        raise BadOption(
            f"option exactlyOnce: {', '.join(without)} cannot recognise messages that are sent again, "
            "because the broker has messageIndexEnable=false or does not belong to this project: set "
            "messageIndexEnable=true and restart it, or remove the option, and delivery is at least once"
        )
    silent = sorted(address for address, found in answers.items() if found is None)
    if silent:
        warnings.warn(
            f"option exactlyOnce: {', '.join(silent)} did not say whether messageIndexEnable is on: the "
            "broker is down or refuses the account. Rows are stored exactly once only if it is on",
            stacklevel=2,
        )
