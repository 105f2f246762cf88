"""The values of a command line, as passed to the functions that do the work."""

from __future__ import annotations

from types import SimpleNamespace


class Options(SimpleNamespace):
    """The values of the options and arguments, as attributes with their names. An option that was not given
    has its default."""


class WrongUsage(Exception):
    """The options cannot be used together, or are wrong. The text says which, and what to give instead."""
