"""Options of Spark's source and sink `kafka`: which of them mean the same here, which have another name, and
which do not apply and why. The tables of the pages docs/reference/spark-source.md and spark-sink.md are made
of it, and the texts of errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

ANY_SETTING = "kafka.*"
"""The pattern of settings about which nothing else is known."""


@dataclass(frozen=True)
class KafkaOption:
    """How an option of Kafka's source is written here.

    `here`: our option of the same meaning, or several, comma separated; the empty text if there is none.
    `note`: how the meaning differs or, for an option that is refused, the reason and what to do instead.
    """

    here: str
    note: str = ""
    accepted: bool = True
    """Whether the option is accepted under Kafka's name."""


def _same(name: str, note: str = "") -> tuple[str, KafkaOption]:
    return name, KafkaOption(name, note)


def _refused(name: str, note: str, here: str = "") -> tuple[str, KafkaOption]:
    return name, KafkaOption(here, note, accepted=False)


_NO_GROUP = (
    "no consumer group is joined and no offset of a group is changed; consumerGroup is only the name in "
    "requests, which matters if an account may read only some groups"
)
_RETRIES = "brokers are asked again until a leader answers, for at most pullTimeoutMs"
_CHECKPOINT = "only the checkpoint of a stream keeps offsets"

OF_SOURCE: dict[str, KafkaOption] = dict(
    (
        ("kafka.bootstrap.servers", KafkaOption("servers", "addresses of NameServers instead of brokers")),
        _same("subscribe", "a topic that does not exist is refused; without a choice, all topics are read"),
        _same(
            "subscribePattern",
            "the whole name must match, as a regular expression of Python; if no topic does, a batch fails "
            "and a stream warns",
        ),
        _same("assign"),
        _same(
            "startingOffsets",
            "JSON for a stream must name every queue, as with Kafka's source; in a batch, queues that are "
            "not named start at their first message",
        ),
        _same(
            "startingOffsetsByTimestamp",
            "by store time; a stream must name every queue, and in a batch queues that are not named start "
            "at their first message",
        ),
        _same("startingTimestamp", "by store time; also a time in ISO form"),
        _same(
            "startingOffsetsByTimestampStrategy",
            "the default is error for startingOffsetsByTimestamp, as in Kafka's source, but latest for "
            "startingTimestamp",
        ),
        _same(
            "endingOffsets",
            "queues that are not named are read to their end; an end before the start is refused",
        ),
        _same("endingOffsetsByTimestamp", "by store time; queues that are not named are read to their end"),
        _same("endingTimestamp", "by store time; also a time in ISO form"),
        _same("failOnDataLoss", "also for a topic that was deleted and made again"),
        _same("includeHeaders", "the column is a map of texts"),
        _same("maxOffsetsPerTrigger", "needs Spark 4.2; a batch does not ignore it but refuses it"),
        _same("minOffsetsPerTrigger", "the triggers Once and AvailableNow do not wait for it"),
        _same("maxTriggerDelay", "refused without minOffsetsPerTrigger"),
        _same("minPartitions", "a task reads ranges of several queues"),
        _same(
            "maxRecordsPerPartition",
            "a task reads at most so many messages in all; in batches of files, so many entries of the log",
        ),
        _refused("kafka.group.id", _NO_GROUP, "consumerGroup"),
        _refused("groupIdPrefix", _NO_GROUP, "consumerGroup"),
        _refused("kafkaConsumer.pollTimeoutMs", _RETRIES, "pullTimeoutMs"),
        _refused("fetchOffset.numRetries", _RETRIES, "pullTimeoutMs"),
        _refused("fetchOffset.retryIntervalMs", _RETRIES, "pullTimeoutMs"),
    )
)
"""Maps each option of the source `kafka` of Spark 4, but for settings of Kafka's consumer, to what it is
here."""

OF_CONSUMER: dict[str, KafkaOption] = dict(
    (
        _refused(
            "kafka.auto.offset.reset",
            f"{_CHECKPOINT}; startingOffsets says where to begin",
            "startingOffsets",
        ),
        _refused("kafka.*.deserializer", "key is text and value is bytes: cast the columns"),
        _refused("kafka.enable.auto.commit", f"{_CHECKPOINT}: nothing is committed to a group"),
        _refused("kafka.auto.commit.interval.ms", f"{_CHECKPOINT}: nothing is committed to a group"),
        _refused("kafka.interceptor.classes", "rows come as they are stored: change them in the query"),
        _refused(
            "kafka.isolation.level",
            "messages of a transaction are shown only when it is committed, so there is nothing to set",
        ),
        _refused(
            "kafka.security.protocol",
            "tls=true encrypts connections, and accessKey names the account",
            "tls, accessKey",
        ),
        _refused(
            "kafka.sasl.*",
            "an account is accessKey with secretKeyFile or secretKeyEnv; secrets are no options, as Spark "
            "shows options in plans and logs",
            "accessKey, secretKeyFile, secretKeyEnv",
        ),
        _refused(
            "kafka.ssl.*",
            "certificates are PEM files: tlsCa, tlsCertificate and tlsKey",
            "tls, tlsCa, tlsCertificate, tlsKey",
        ),
        _refused("kafka.session.timeout.ms", _NO_GROUP),
        _refused("kafka.heartbeat.interval.ms", _NO_GROUP),
        _refused("kafka.max.poll.interval.ms", _NO_GROUP),
        _refused("kafka.partition.assignment.strategy", _NO_GROUP),
        _refused("kafka.group.*", _NO_GROUP),
        _refused(
            "kafka.max.poll.records",
            "pullBatchSize is the number of messages of one request",
            "pullBatchSize",
        ),
        _refused("kafka.fetch.*", "pullBatchSize is the number of messages of one request", "pullBatchSize"),
        _refused(
            "kafka.max.partition.fetch.bytes",
            "pullBatchSize is the number of messages of one request",
            "pullBatchSize",
        ),
        _refused("kafka.request.timeout.ms", _RETRIES, "pullTimeoutMs"),
        _refused("kafka.default.api.timeout.ms", _RETRIES, "pullTimeoutMs"),
        _refused("kafka.ret*", _RETRIES, "pullTimeoutMs"),
        _refused("kafka.reconnect.*", _RETRIES, "pullTimeoutMs"),
        _refused("kafka.client.rack", "only leaders answer: there is no replica to prefer"),
        _refused("kafka.metadata.max.age.ms", "queues are looked up anew for each batch"),
        _refused(
            "kafka.*",
            "messages are pulled by the client of dledger, and settings of Kafka's consumer have no effect",
        ),
    )
)
"""Maps settings of Kafka's consumer, as patterns, to what they are here. The first pattern that matches
counts."""


_QUORUM = "a row counts as written when a quorum of its broker group has acknowledged it"
_SENDS = "a batch is sent again for at most 10 s, until a leader answers, and the option retries repeats that"
_BATCHES = "a batch is sent when it has maxBatchBytes, or at the end of the task"
_PRODUCER_ENDS = "rows are sent as they are: change them in the query"

OF_SINK: dict[str, KafkaOption] = dict(
    (
        ("kafka.bootstrap.servers", KafkaOption("servers", "addresses of NameServers instead of brokers")),
        _same("topic", "it must exist, unless createTopic is true"),
        _refused("includeHeaders", "the column headers is always used, if the rows have it"),
        _refused("kafka.acks", f"{_QUORUM}: remove this option"),
        _refused(
            "kafka.enable.idempotence",
            "exactlyOnce with ids of the rows, also over restarts of the query",
            "exactlyOnce",
        ),
        _refused(
            "kafka.transactional.id",
            "exactlyOnce recognises the rows of attempts that failed; rows are visible once they are stored",
            "exactlyOnce",
        ),
        _refused("kafka.retries", "it is called retries here, and counts batches", "retries"),
        _refused("kafka.retry.backoff.*", _SENDS, "retries"),
        _refused("kafka.delivery.timeout.ms", _SENDS, "retries"),
        _refused("kafka.request.timeout.ms", _SENDS, "retries"),
        _refused("kafka.max.block.ms", _SENDS, "retries"),
        _refused("kafka.batch.size", _BATCHES, "maxBatchBytes"),
        _refused("kafka.linger.ms", _BATCHES, "maxBatchBytes"),
        _refused("kafka.buffer.memory", _BATCHES, "maxBatchBytes, maxInFlight"),
        _refused("kafka.max.request.size", _BATCHES, "maxBatchBytes"),
        _refused(
            "kafka.max.in.flight.requests.per.connection",
            "each queue has one batch in flight, so rows keep their order; a task has maxInFlight in all",
            "maxInFlight",
        ),
        _refused("kafka.compression.type", "a row that is sent alone is compressed if it is large"),
        _refused("kafka.partitioner.*", "the columns partition and key choose the queue"),
        _refused("kafka.*.serializer", "value is bytes or text, and key is text: cast the columns"),
        _refused("kafka.interceptor.classes", _PRODUCER_ENDS),
        _refused("kafka.client.id", "the producer has a name of its own"),
        *((name, OF_CONSUMER[name]) for name in ("kafka.security.protocol", "kafka.sasl.*", "kafka.ssl.*")),
        _refused(
            "kafka.*",
            "rows are sent by the client of dledger, and settings of Kafka's producer have no effect",
        ),
    )
)
"""Maps each option of the sink `kafka` of Spark 4, and settings of Kafka's producer as patterns, to what they
are here. The first pattern that matches counts."""


def reason(name: str) -> str | None:
    """Return why an option of Kafka's source is not accepted and what to do instead; None for any other
    option. The text has the name as Kafka writes it, as Spark passes names in lower case. A setting of
    Kafka's consumer is also recognised without `kafka.`, and with underscores, as Python's clients write it.
    """
    return _reason(name, {**OF_SOURCE, **OF_CONSUMER}, "source")


def sink_reason(name: str) -> str | None:
    """Do for an option of Kafka's sink what `reason` does."""
    return _reason(name, OF_SINK, "sink")


def _reason(name: str, options: Mapping[str, KafkaOption], side: str) -> str | None:
    plain = f"kafka.{name.replace('_', '.')}".lower()
    for known, option in options.items():
        if fnmatchcase(name.lower(), known.lower()) and not option.accepted:
            written = name if "*" in known else known
            return f"option {written}: it is an option of Kafka's {side}: {option.note}{_instead(option)}"
        if known != ANY_SETTING and fnmatchcase(plain, known.lower()):
            what = f"option {name}: it is a setting of Kafka's clients"
            return (
                f"{what}: write {option.here}"
                if option.accepted
                else f"{what}: {option.note}{_instead(option)}"
            )
    return None


def _instead(option: KafkaOption) -> str:
    """Return which options of ours to use, unless the note names them."""
    named = all(re.search(rf"\b{one}\b", option.note) for one in option.here.split(", "))
    return "" if named else f" (here: {option.here})"
