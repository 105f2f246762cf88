"""The example load of the quickstart."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType


def load_script(name: str) -> ModuleType:
    """scripts/ is no package: its modules are loaded by path."""
    path = Path(__file__).resolve().parents[2] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


orders = load_script("orders")


def take(seed: int, count: int) -> list[object]:
    return list(itertools.islice(orders.order_events(seed), count))


def test_a_seed_gives_the_same_events_and_another_one_others() -> None:
    assert take(7, 500) == take(7, 500)
    assert take(7, 500) != take(8, 500)


def test_every_order_lives_its_life_in_order() -> None:
    way = ["created", "paid", "packed", "shipped", "delivered", "refunded"]
    lives: dict[str, list[str]] = {}
    for event in take(1, 3000):
        lives.setdefault(event.key, []).append(event.tag)  # type: ignore[attr-defined]
    assert len(lives) > 400
    for life in lives.values():
        assert life in (way[: len(life)], ["created", "cancelled"])


def test_bodies_are_json_that_names_the_order_and_the_event() -> None:
    for event in take(2, 300):
        body = json.loads(event.body)  # type: ignore[attr-defined]
        assert (body["order"], body["event"]) == (event.key, event.tag)  # type: ignore[attr-defined]
