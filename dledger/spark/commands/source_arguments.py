"""Arguments that say where a job reads messages from."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dledger.runtime.environment_variables import add_namesrv, namesrv_addr
from dledger.runtime.remote_files import absolute

if TYPE_CHECKING:
    from dledger.spark.jobs.log_source import LogSource

EPILOG = """STORE is the storePathRootDir of a node; a running node's may be read. Of several replicas of one
group the one that knows the highest committed index is read."""


def add_source(parser: argparse.ArgumentParser, *, archive: bool = True) -> None:
    """STORE, `--namesrv`, `--archive`, `--topics`, `--option`."""
    parser.add_argument(
        "stores", metavar="STORE", nargs="*", type=absolute, help="store directory (storePathRootDir)"
    )
    add_namesrv(parser, "NameServers of live brokers: host:port", "where no other source is given")
    if archive:
        parser.add_argument(
            "--archive", metavar="DIR", default="", help="an archive of `dledger spark archive`"
        )
    parser.add_argument("--topics", metavar="A,B", help="topics to read (default: all but system topics)")
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        type=_option,
        action="append",
        default=[],
        help="an option of the data source; may be given several times",
    )


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def servers_of(arguments: argparse.Namespace) -> str:
    """NameServers: those that were given, or NAMESRV_ADDR where no other source is; else the empty text."""
    if arguments.namesrv is not None:
        return str(arguments.namesrv)
    return "" if arguments.stores or getattr(arguments, "archive", "") else namesrv_addr()


def source_of(arguments: argparse.Namespace) -> LogSource:
    """The source that the arguments name; spark.jobs.errors.JobError when they name none or several, or an
    option twice."""
    from dledger.spark.jobs.errors import JobError
    from dledger.spark.jobs.log_source import LogSource

    options: dict[str, str] = {}
    topics = [] if arguments.topics is None else [("subscribe", arguments.topics)]
    for name, value in [*topics, *arguments.option]:
        if name in options:
            also = " (--topics is one of them)" if topics and name == "subscribe" else ""
            raise JobError(f"option {name} is given twice{also}: give it once")
        options[name] = value
    archive = getattr(arguments, "archive", "")
    return LogSource(
        tuple(arguments.stores), servers_of(arguments), absolute(archive) if archive else "", options
    )
