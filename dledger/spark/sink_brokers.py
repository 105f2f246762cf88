"""What the driver asks brokers before a write: whether the topic exists and, with `exactlyOnce`, which queues
it has, whether brokers recognise messages that are sent again, and whether the log still has what the batch
of a stream may have sent before."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from dledger.client import ClientError, Producer, TopicNotFound
from dledger.client.bulk.range_puller import RangePuller
from dledger.client.bulk.ranges import RangeOptions
from dledger.runtime.atomic_file import read_file
from dledger.runtime.files import OsFiles
from dledger.runtime.remote_files import absolute, is_url
from dledger.spark.log_lives import unknown_topic
from dledger.spark.option_values import BadOption
from dledger.spark.sink_options import SinkOptions

CONSUMER_GROUP = "SPARK_SINK"
WINDOW_MARGIN_MS = 60_000
"""A batch must have begun this many ms after the oldest entry of the log was stored. So its rows are also
found if clocks differ by less, and if retention goes on while they are sent again."""


class Begun(NamedTuple):
    """A batch of a stream that was begun and has not ended, and when it was planned, in ms since the
    epoch."""

    number: int
    time: int


def with_topic(options: SinkOptions) -> SinkOptions:
    """Return the options with the queues of their topic, which `exactlyOnce` needs. The topic is created if
    it does not exist and `createTopic` is set. If a column names the topics, the options are returned
    unchanged.

    Raises BadOption if the topic does not exist, as a mistyped name would become a topic of its own. Raises
    ClientError if no NameServer answers, or if the topic cannot be created.
    """
    if not options.topic:
        return options
    with Producer(CONSUMER_GROUP, options.servers, client=options.access.client()) as producer:
        there = False
        with suppress(TopicNotFound):
            producer.queues(options.topic)  # also of a topic that brokers would create
            there = producer.has_route(options.topic)
        if not there and not options.create_topic:
            raise BadOption(f"option topic: {no_topic(options)}")
        if not there:
            producer.create_topic(options.topic)
        queues = sorted(producer.queues(options.topic, refresh=True))
    return replace(options, queues=tuple(queues)) if options.exactly_once else options


def no_topic(options: SinkOptions, topic: str = "") -> str:
    """Return the error text for a topic that does not exist. `topic`: the name in a row, if a column names
    the topics."""
    known: list[str] = []
    access = RangeOptions(CONSUMER_GROUP, client=options.access.client())
    with suppress(ClientError), RangePuller(options.servers, access) as puller:  # it may not list them
        known = puller.topics()
    text = unknown_topic(topic or options.topic, known)
    end = "" if text.endswith("?") else "."
    return f"{text}{end} Create it with `dledger topic create`, or set createTopic to true"


def check_brokers(options: SinkOptions) -> None:
    """Ask all brokers of the topic, or of the cluster if a column names the topics or if the topic does not
    exist yet.

    Raises BadOption if a broker cannot recognise messages that are sent again, or if retention may have
    deleted what the batch of a stream sent before. Warns if a broker did not answer or does not show its
    settings. Raises ClientError if no NameServer answers.
    """
    known = RangeOptions(CONSUMER_GROUP, client=options.access.client())
    with RangePuller(options.servers, known) as puller:
        groups: list[str] = []
        if options.topic:
            with suppress(TopicNotFound):
                groups = [queue.broker_name for queue in puller.queues(options.topic)]
        answers = puller.recognise_resends(groups or puller.broker_groups())
        _check_window(puller, options)
    without = sorted(address for address, found in answers.items() if found is False)
    if without:
        raise BadOption(
            f"option exactlyOnce: {', '.join(without)} cannot recognise messages that are sent again, "
            "because the broker has messageIndexEnable=false, runs an older version, or does not belong to "
            "this project: set messageIndexEnable=true, upgrade and restart it, or remove the option, and "
            "delivery is at least once"
        )
    silent = sorted(address for address, found in answers.items() if found is None)
    if silent:
        warnings.warn(
            f"option exactlyOnce: {', '.join(silent)} did not say whether messageIndexEnable is on: the "
            "broker is down or refuses the account. Rows are stored exactly once only if it is on",
            stacklevel=2,
        )


def begun_batch(checkpoint: str) -> Begun | None:
    """Return the batch of a stream that was begun and has not ended, by the checkpoint of Spark. None if
    there is none, and if this process cannot read the checkpoint, for example in an object store."""
    root, files = absolute(checkpoint), OsFiles()
    if not checkpoint or is_url(root):
        return None
    try:
        planned, ended = (
            max((int(name) for name in files.listdir(f"{root}/{part}") if name.isdecimal()), default=-1)
            for part in ("offsets", "commits")
        )
        if planned <= ended:
            return None
        # A line with the version of the format, one with JSON about the batch, and the positions.
        text = read_file(files, f"{root}/offsets/{planned}") or b""
        return Begun(planned, int(json.loads(text.splitlines()[1])["batchTimestampMs"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _check_window(puller: RangePuller, options: SinkOptions) -> None:
    """Raise BadOption if a batch of the stream was begun before, and retention may have deleted what it sent.

    Nothing is known of batch writes, of topics that a column names, and of checkpoints that this process
    cannot read.
    """
    begun = begun_batch(options.checkpoint)
    if begun is None or not options.topic:
        return
    try:
        bounds = puller.bounds(puller.queues(options.topic))
    except TopicNotFound:
        return
    shortened = {queue.broker_name for queue, (start, _) in bounds.items() if start}
    known = {address: time for address, time in puller.oldest_times(shortened).items() if time is not None}
    late = {address: time for address, time in known.items() if time > begun.time - WINDOW_MARGIN_MS}
    if late:
        address, oldest = max(late.items(), key=lambda item: item[1])
        raise BadOption(
            f"option exactlyOnce: batch {begun.number} of the checkpoint {options.checkpoint} was begun at "
            f"{_shown(begun.time)} and has not ended, and the log of {address} has only what was stored from "
            f"{_shown(oldest)} on. Retention may have deleted rows of topic {options.topic} that the batch "
            "had sent, so they would be stored again. To accept that, run the query once without the option "
            "exactlyOnce; to avoid it, find out what is missing and go on with a new checkpoint"
        )


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
