"""The values of a command line, as passed to the functions that do the work."""

from __future__ import annotations

from types import SimpleNamespace


class Options(SimpleNamespace):
    """The value of each option and argument, by its name. An option that was not given has its default."""


class WrongUsage(Exception):
    """Options that cannot be used together. The text says which, and what to give instead."""
