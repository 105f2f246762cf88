"""Shows the current stacks of the threads and tasks of this process, as jstack does for Java."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback

MAX_TASKS = 100
"""Largest number of tasks that are shown."""


def stacks() -> str:
    """Return the stacks of all threads, and of the tasks of this loop."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n" + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()
    ]
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks[:MAX_TASKS]:
        where = [frame for top in task.get_stack(limit=1) for frame in traceback.format_stack(top, limit=1)]
        parts.append(f"task {task.get_name()}\n" + "".join(where))
    return "\n".join(parts)
