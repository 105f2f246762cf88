"""The commands of `dledger spark`, one module each. What a command is: `command`.

Importing them costs no pyspark.
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
"""In the order of `--help`."""
