"""Choose the view that a batch query reads, by its options: a view of store directories or of live
brokers."""

from __future__ import annotations

from collections.abc import Callable

from dledger.spark.live_queues import LiveMessagesView, LiveQueuesView
from dledger.spark.live_replicas import LiveEntriesView, LiveIndexView, LiveScanView
from dledger.spark.live_state import LiveStateView
from dledger.spark.options import Options
from dledger.spark.views import View, directory_view


def view_of(options: Options) -> View:
    """Return the view that a batch query with these options reads."""
    if not options.servers:
        return directory_view(options)
    views: dict[str, Callable[[Options], View]] = {
        "messages": LiveMessagesView,
        "entries": LiveEntriesView,
        "index": LiveIndexView,
        "queues": LiveQueuesView,
        "scan": LiveScanView,
        "state": LiveStateView,
    }
    return views[options.view](options)
