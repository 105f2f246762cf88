"""Arguments that say where a job reads messages from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.runtime.environment_variables import namesrv_addr
from dledger.runtime.options import Options
from dledger.runtime.remote_files import absolute

if TYPE_CHECKING:
    from dledger.spark.jobs.log_source import LogSource


def servers_of(arguments: Options) -> str:
    """Return the NameServers of the option `namesrv`. Without the option: NAMESRV_ADDR if no other source
    is given, else the empty text."""
    if arguments.namesrv is not None:
        return str(arguments.namesrv)
    return "" if arguments.stores or getattr(arguments, "archive", "") else namesrv_addr()


def source_of(arguments: Options) -> LogSource:
    """Return the source that the arguments name. Raises spark.jobs.errors.JobError if they name none or
    several, or give an option twice."""
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
