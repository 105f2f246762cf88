"""Commands that write the state of a cluster to JSON files: exportConfigs, exportMetadata, exportMetrics."""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    BROKER,
    CLUSTER,
    Command,
)
from dledger.commands.mqadmin.options import Option

DIRECTORY = "/tmp/rocketmq/export"
"""Directory in which exports are written when -f is not given, as in Apache's mqadmin."""
_PATH = Option("f", "filePath", f"Directory of the file (default {DIRECTORY})")
_CLUSTER = Option("c", "clusterName", "All brokers of this cluster", required=True)

COMMANDS = (
    Command("exportMetadata", "Write topics and groups to a file", (
        CLUSTER, BROKER, _PATH, Option("t", "topic", "Only topics", value=False),
        Option("g", "subscriptionGroup", "Only groups", value=False),
        Option("s", "specialTopic", "With topics of retries and dead letters", value=False),
    ), "exports:metadata"),
    Command("exportConfigs", "Write settings of brokers to a file", (_CLUSTER, _PATH), "exports:configs"),
    Command("exportMetrics", "Write figures of brokers to a file", (_CLUSTER, _PATH), "exports:metrics"),
)  # fmt: skip
