"""The error that ends a job. The command line prints its text and exits with 4."""

from __future__ import annotations


class JobError(Exception):
    """The text says what is wrong and what to do."""
