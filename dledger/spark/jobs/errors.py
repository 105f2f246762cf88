"""The error that ends a job. The command line prints its text and exits with code 4."""

from __future__ import annotations


class JobError(Exception):
    """The job cannot run or cannot continue. The text says what is wrong and what to do."""
