"""The commands of `dledger spark`, one module each. `command` defines what a command is.

Importing this package does not import pyspark.
"""

from dledger.spark.commands import account, archive, audit, doctor, lag, read, replay, stats
from dledger.spark.commands.command import Command

COMMANDS: tuple[Command, ...] = (
    audit.COMMAND,
    read.COMMAND,
    archive.COMMAND,
    replay.COMMAND,
    stats.COMMAND,
    lag.COMMAND,
    account.COMMAND,
    doctor.COMMAND,
)
"""All commands, in the order of `--help`."""
