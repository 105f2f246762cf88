"""Warnings that a session of Spark shows once.

Spark plans each DataFrame in a Python process of its own choice, and resets Python's record of the warnings
that were shown. So a warning of the planner would come once for each DataFrame. What was shown is therefore
noted in Spark's scratch directory, which all processes of the driver have in common, and which Spark removes
when the session ends.
"""

from __future__ import annotations

import warnings

from dledger.runtime.environment_variables import variable
from dledger.runtime.files import OsFiles

SCRATCH = "SPARK_LOCAL_DIRS"
"""Name of the variable with Spark's scratch directories, separated by commas."""


def warn_once(name: str, text: str) -> None:
    """Show a warning, unless this session has shown it already. `name`: its name among the files of the
    scratch directory. Outside of Spark's processes, and if nothing can be noted, it is shown each time."""
    scratch = variable(SCRATCH).partition(",")[0]
    if scratch:
        files, noted = OsFiles(), f"{scratch}/dledger-{name}"
        if files.is_dir(noted):
            return
        try:
            files.mkdir(noted, sync=False)
        except OSError as error:
            text = f"{text} (it may be shown again: {error})"
    warnings.warn(text, stacklevel=3)
