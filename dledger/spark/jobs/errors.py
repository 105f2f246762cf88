"""What a job cannot go on with. The command line says it and ends with 4."""

from __future__ import annotations


class JobError(Exception):
    """The text says what is wrong and what to do."""
