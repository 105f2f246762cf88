"""A context for one part of a node, in tests of that part alone."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dledger.config import NodeConfig
from dledger.context.node_context import NodeContext


def context(**given: Any) -> NodeContext:
    """With these fields, and a config if none is given; the others are None."""
    config = NodeConfig("g", "n0", {"n0": "127.0.0.1:1"}, "unused")
    parts = dict.fromkeys(field.name for field in fields(NodeContext)) | {"config": config}
    return NodeContext(**(parts | given))
