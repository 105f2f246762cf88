"""What an audit reads: store directories, brokers of live groups, or digests that brokers have shipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from dledger.audit.defaults import DIGESTS_MAX_AGE_S
from dledger.audit.replicas import ReplicaSource, StoreSource
from dledger.audit.report import Report
from dledger.audit.store_directory import StoreError
from dledger.client.bulk.replicas import AuditOptions, find_groups
from dledger.client.errors import ClientError
from dledger.runtime.environment_variables import namesrv_addr
from dledger.runtime.options import Options
from dledger.runtime.remote_files import files_for
from dledger.spark.live import GroupSource


class BadPlace(Exception):
    """The arguments name nothing to audit, or contradict each other. The text says what to do."""


class NoAnswer(BadPlace):
    """The stores, brokers or digests that the arguments name cannot be read."""


@dataclass(frozen=True)
class Group:
    """Replicas to compare with each other. `name`: name of the group; empty for store directories, which
    themselves contain it. `drill_sources`: where single entries are read; None means from `sources`."""

    name: str
    sources: tuple[ReplicaSource, ...]
    drill_sources: tuple[ReplicaSource, ...] | None = None


def groups_to_audit(arguments: Options, now_ms: int) -> list[Group]:
    """Return the groups that the arguments name. Blocking, as it asks the NameServers. `now_ms`: wall
    clock. Raises BadPlace or NoAnswer."""
    if arguments.namesrv is None and arguments.digests is None and not arguments.stores:
        arguments = Options(**{**vars(arguments), "namesrv": namesrv_addr() or None})
    try:
        stores = tuple(StoreSource.at(path) for path in arguments.stores)
        if arguments.digests is not None:
            return _shipped(arguments, stores, now_ms)
        if arguments.namesrv is not None:
            return _live(arguments, stores)
    except (ClientError, StoreError, OSError) as error:
        raise NoAnswer(str(error)) from error
    for option, others in (
        ("cluster", "--namesrv: give it"),
        ("group", "--namesrv or --digests: give one of them"),
        ("max-age", "--namesrv or --digests: give one of them"),
    ):
        if getattr(arguments, option.replace("-", "_")) is not None:
            raise BadPlace(f"--{option} can only be used with {others}")
    if not stores:
        raise BadPlace(
            "there is nothing to audit: give store directories, --namesrv host:port (or set "
            "NAMESRV_ADDR), or --digests PATH"
        )
    return [Group("", stores)]


def _live(arguments: Options, stores: tuple[StoreSource, ...]) -> list[Group]:
    options = AuditOptions(max_age_ms=(arguments.max_age or 0) * 1000)
    found = find_groups(arguments.namesrv, arguments.cluster, arguments.group)
    if not found:
        raise BadPlace(f"no broker is registered at {arguments.namesrv}")
    _one_for(stores, [each.group for each in found])
    return [
        Group(each.group, (GroupSource(arguments.namesrv, each.group, each.cluster, options), *stores))
        for each in found
    ]


def _shipped(arguments: Options, stores: tuple[StoreSource, ...], now_ms: int) -> list[Group]:
    if arguments.cluster is not None and arguments.namesrv is None:
        raise BadPlace("--cluster can only be used with --namesrv; with --digests use --group")
    # Imported here, because it needs pyarrow, and an audit of stores or brokers must work without it.
    from dledger.audit.shipped import ShippedSource, shipped_groups

    root, files = arguments.digests, files_for(arguments.digests)
    known = shipped_groups(files, root)
    if arguments.group is not None and arguments.group not in known:
        close = get_close_matches(arguments.group, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the known ones are {', '.join(known) or 'none'}"
        raise BadPlace(f"{root}: no digests were shipped for a group {arguments.group!r}; {hint}")
    if not known:
        raise BadPlace(f"{root}: no digests were shipped there: check digestShipPath of the brokers")
    chosen = [group for group in known if arguments.group in (None, group)]
    _one_for(stores, chosen)
    max_age_s = DIGESTS_MAX_AGE_S if arguments.max_age is None else arguments.max_age
    not_before_ms = now_ms - max_age_s * 1000
    groups = []
    for group in chosen:
        live = [] if arguments.namesrv is None else [GroupSource(arguments.namesrv, group, arguments.cluster)]
        groups.append(Group(group, (ShippedSource(root, group, files, not_before_ms),), (*live, *stores)))
    return groups


def _one_for(stores: Sequence[StoreSource], groups: Sequence[str]) -> None:
    if stores and len(groups) > 1:
        raise BadPlace(f"the directories need a group, given with --group: {', '.join(groups)}")


def joined(groups: Sequence[Group], reports: Sequence[Report]) -> Report:
    """Join the reports of several groups into one report. If there are several, its replicas are called
    `group/replica`."""
    if len(reports) == 1:
        return reports[0]
    together = Report([], min(report.compared_up_to for report in reports), [])
    for group, report in zip(groups, reports, strict=True):
        together.replicas.extend(
            {**each, "replica": _prefixed(group, str(each["replica"]))} for each in report.replicas
        )
        together.findings.extend(
            found._replace(replica=_prefixed(group, found.replica)) for found in report.findings
        )
    members = sum(report.members for report in reports)
    return replace(together, seconds=sum(report.seconds for report in reports), members=members)


def _prefixed(group: Group, replicas: str) -> str:
    """Put the group's name before the name of each replica. A finding may name several replicas, or none."""
    return ",".join(f"{group.name}/{replica}".rstrip("/") for replica in replicas.split(","))
