"""All pages, in the order of the navigation."""

from __future__ import annotations

from dledger.dashboard.pages import groups, messages, nodes, overview, topics
from dledger.dashboard.pages.page import Page

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    nodes.PAGE,
    nodes.NODE,
    topics.PAGE,
    topics.TOPIC,
    groups.PAGE,
    groups.GROUP,
    messages.PAGE,
    messages.MESSAGE,
)
