"""Options of Spark's source `kafka`: which of them mean the same here, which have another name, and which do
not apply and why. The table of the page docs/reference/spark-source.md is made of it, and the texts of
errors."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


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
        _same("subscribePattern", "the whole name must match, as a regular expression of Python"),
        _same("assign"),
        _same("startingOffsets", "queues that are not named start at their first message"),
        _same(
            "startingOffsetsByTimestamp",
            "by store time; queues that are not named start at their first message",
        ),
        _same("startingTimestamp", "by store time; also a time in ISO form"),
        _same(
            "startingOffsetsByTimestampStrategy",
            "the default is error for startingOffsetsByTimestamp, as in Kafka's source, but latest for "
            "startingTimestamp",
        ),
        _same("endingOffsets", "queues that are not named are read to their end"),
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


def reason(name: str) -> str | None:
    """Return why an option of Kafka is not accepted and what to do instead; None for any other option. The
    text has the name as Kafka writes it, as Spark passes names in lower case."""
    for known, option in {**OF_SOURCE, **OF_CONSUMER}.items():
        if not option.accepted and fnmatchcase(name.lower(), known.lower()):
            written = name if "*" in known else known
            return f"option {written}: it is an option of Kafka's source: {option.note}"
    return None
