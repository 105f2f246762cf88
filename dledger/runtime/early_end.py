"""SIGTERM before a server's event loop handles signals. This module imports nothing that takes long."""

from __future__ import annotations

import os
import signal


def end_on_sigterm() -> None:
    """Make SIGTERM end a server at once, until the server's event loop handles signals; nothing is open
    yet.

    This is needed because imports take seconds on a busy machine, and because process 1 of a container
    does not receive a signal for which it has no handler.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
