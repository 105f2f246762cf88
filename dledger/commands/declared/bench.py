"""`dledger bench`: one command for each measurement, with the options that it has."""

from __future__ import annotations

from typing import Any

import click

from dledger.bench.compare.load import LOADS
from dledger.commands import exit_codes
from dledger.commands.declaring import (
    POSITIVE,
    Declared,
    Group,
    flag,
    json_option,
    namesrv_option,
    option,
)


def _number(name: str, default: int | None, text: str) -> click.Option:
    return option(
        f"--{name}", metavar="N", type=POSITIVE, default=default, show_default=default is not None, help=text
    )


def _size() -> click.Option:
    return _number("size", 1024, "Size of a message body in bytes.")


def _window() -> click.Option:
    return _number("window", 256, "Requests in flight.")


def _batch() -> click.Option:
    return _number("batch", 1, "Messages in one request.")


def _seconds(default: float | None, text: str = "Duration.") -> click.Option:
    return option(
        "--seconds", metavar="S", type=float, default=default, show_default=default is not None, help=text
    )


def _nodes() -> click.Option:
    return option(
        "--nodes", type=click.Choice(["3", "5"]), default="3", show_default=True, help="Nodes of a group."
    )


def _directory(text: str, **more: Any) -> click.Option:
    return option("--directory", metavar="DIR", type=click.Path(file_okay=False), help=text, **more)


def _runs() -> click.Option:
    return _number("runs", 5, "Number of repetitions.")


def _megabytes() -> click.Option:
    return _number("megabytes", 2000, "Random seed of the stores, when they are created.")


_STORES = "Directory of the stores: they are created once, and stay."


def _mode(
    name: str, summary: str, *params: click.Parameter, extra: str = "server", text: str = ""
) -> Declared:
    return Declared(
        name,
        "dledger.bench.cli:run",
        [*params, json_option("One JSON line on standard output.")],
        codes=exit_codes.BENCH,
        summary=summary,
        text=text,
        extra=extra,
        always={"mode": name},
    )


def _of_a_running_group() -> list[click.Parameter]:
    """Return the options that `produce` and `consume` share."""
    return [
        namesrv_option("host:port of a NameServer, several with ';'.", "or the group of this directory"),
        option(
            "--topic",
            metavar="NAME",
            default="bench",
            show_default=True,
            help="The topic; created if it is missing.",
        ),
        _window(),
        _batch(),
        _number("messages", None, "End after this number of messages."),
    ]


BENCH = Group(
    "bench",
    "Load a running broker group; measure its parts.",
    [
        _mode(
            "produce",
            "send to a running group as fast as it accepts messages",
            *_of_a_running_group(),
            _seconds(None, "End after this time. [default: 10, without --messages]"),
            _size(),
            _number("connections", 1, "Producers."),
            _number("queues", 8, "Number of queues of a topic that is created."),
            option(
                "--warmup",
                "warmup_s",
                metavar="S",
                type=float,
                default=1.0,
                show_default=True,
                help="Seconds at the beginning that are left out of every figure.",
            ),
        ),
        _mode(
            "consume",
            "pull all messages of a topic from a running group",
            *_of_a_running_group(),
            _seconds(None, "End after this time."),
        ),
        _mode("core", "microseconds of election and replication steps"),
        _mode(
            "idle",
            "CPU time of an idle group of three",
            _seconds(20.0),
            flag("--check", help="Exit code 1 when a node takes more than 2 percent of a core."),
        ),
        _mode(
            "loaded",
            "longest delays of the event loops of a group under load",
            _seconds(120.0),
            _size(),
            _window(),
            _batch(),
            text="Longest delays of the event loops of a group under load. Exit code 1 when one is above a "
            "third of the election time-out.",
        ),
        _mode(
            "scale",
            "what many queues and groups cost, compared with few: sends, memory, starts",
            _number("queues", 10_000, "Queues."),
            _number("groups", 1000, "Consumer groups."),
            _seconds(20.0),
        ),
        _mode(
            "clients",
            "what many idle connected clients cost, compared with few",
            _number("clients", 5000, "Connected clients."),
            _number("groups", 100, "Consumer groups."),
            _seconds(10.0),
        ),
        _mode(
            "compare",
            "the same load on groups of other systems that are installed here",
            option(
                "--systems",
                metavar="A,B",
                help="Systems to measure, in this order. [default: the installed ones]",
            ),
            option("--loads", metavar="A,B", help=f"Of {', '.join(LOADS)}. [default: all]"),
            _nodes(),
            _size(),
            _seconds(8.0, "Duration of each load."),
            _number("turns", 1, "Number of repetitions."),
            option(
                "--rocketmq",
                metavar="DIR",
                type=click.Path(file_okay=False),
                help="Jars of Apache RocketMQ.",
            ),
            _directory("Directory of the stores. [default: a temporary one]"),
        ),
        _mode(
            "restart",
            "how long a group with a large log takes to start",
            option(
                "--gigabytes",
                metavar="GB",
                type=float,
                default=10.0,
                show_default=True,
                help="Size of the log of each node.",
            ),
            _nodes(),
            _size(),
            _directory("Directory of the stores. [default: a temporary one]"),
            text="How long a group with a large log takes to start, after a clean stop and after a "
            "kill of all nodes under load, with its files in the page cache and without.",
        ),
        _mode(
            "timers",
            "how late timer messages come, at a steady rate and many at once",
            _number("messages", 100_000, "Messages that are due at one second."),
            _number("rate", 1000, "Messages a second."),
            _size(),
            _number("precision", 1000, "timerPrecisionMs of the brokers."),
        ),
        _mode(
            "topics",
            "milliseconds that a change of one topic takes on the event loops",
            _number("topics", 50_000, "Topics."),
        ),
        _mode(
            "audit",
            "speed and memory of the audit of large stores",
            _directory(_STORES, required=True),
            _megabytes(),
        ),
        _mode(
            "spark",
            "messages a second that Spark reads from a store",
            option(
                "--store",
                metavar="DIR",
                help="The store, written if it is missing. [default: a temporary one]",
            ),
            _number("messages", 1_000_000, "Messages of a store that is written."),
            _size(),
            _runs(),
            extra="spark",
        ),
        _mode(
            "spark-audit",
            "seconds of the audit on Spark, and bytes that it shuffles",
            _directory(_STORES, required=True),
            _megabytes(),
            _runs(),
            extra="spark",
        ),
        _mode(
            "spark-plans",
            "time and memory that planning large reads costs Spark's driver",
            _number("segments", 10_000, "Segments of the store, of 1 GiB each."),
            _number("queues", 10_000, "Queues of the store."),
            _number("partitions", 1_000, "Tasks that minPartitions asks for."),
            extra="spark",
        ),
        _mode(
            "spark-sink",
            "rows a second that Spark writes to three brokers",
            _number("messages", 200_000, "Rows."),
            _size(),
            _runs(),
            extra="spark",
        ),
        _mode(
            "lake",
            "what a table of a topic costs: filling, queries, and following a group",
            option(
                "--format",
                type=click.Choice(["delta", "iceberg"]),
                default="delta",
                show_default=True,
                help="Format of the table.",
            ),
            _number("messages", 500_000, "Messages of the table that is filled and queried."),
            _size(),
            _runs(),
            _seconds(10.0, "Duration of each turn of a group, alone and followed; 0: without the group."),
            extra="lake",
        ),
    ],
)
