"""Order events of a shop, as an example load: the same seed gives the same events.

Each order goes through a life (created, paid, packed, shipped, delivered; some are cancelled or refunded),
several orders at a time, so that events of one order lie between those of others, as in a real shop. All
events of an order carry its id as key: sent to one queue, they stay in order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

CATALOGUE = (
    ("TEA-EARL-250", "Earl Grey, 250 g", 890),
    ("TEA-SENCHA-100", "Sencha, 100 g", 1240),
    ("CUP-STONE-30", "Stoneware cup, 300 ml", 1590),
    ("POT-GLASS-12", "Glass teapot, 1.2 l", 3490),
    ("KETTLE-17", "Kettle, 1.7 l", 5900),
    ("FILTER-100", "Paper filters, 100 pieces", 420),
    ("HONEY-500", "Acacia honey, 500 g", 990),
)
CITIES = ("Lisbon", "Lyon", "Leipzig", "Łódź", "Linköping", "Ljubljana", "Limerick")
CARRIERS = ("post", "courier", "pick-up")
OPEN_ORDERS = 40
"""Orders under way at the same time."""
START = datetime(2024, 3, 1, 8, 0, tzinfo=UTC)


@dataclass(frozen=True)
class OrderEvent:
    """One message: `key` is the order id, `tag` the kind of event, `body` JSON in UTF-8."""

    key: str
    tag: str
    body: bytes


def order_events(seed: int) -> Iterator[OrderEvent]:
    """Endless events."""
    chance = random.Random(seed)
    now = START
    serial = 0
    lives: list[Iterator[tuple[str, dict[str, object]]]] = []
    while True:
        while len(lives) < OPEN_ORDERS:
            serial += 1
            lives.append(_life(chance, f"O-{START:%Y%m}-{serial:07d}"))
        now += timedelta(milliseconds=chance.randint(5, 900))
        at = chance.randrange(len(lives))
        step = next(lives[at], None)
        if step is None:
            lives.pop(at)
            continue
        tag, fields = step
        event = {"event": tag, "at": now.isoformat(timespec="milliseconds"), **fields}
        yield OrderEvent(str(fields["order"]), tag, json.dumps(event, ensure_ascii=False).encode())


def _life(chance: random.Random, order: str) -> Iterator[tuple[str, dict[str, object]]]:
    lines = [
        {"sku": sku, "name": name, "quantity": chance.randint(1, 4), "cents": cents}
        for sku, name, cents in chance.sample(CATALOGUE, chance.randint(1, 4))
    ]
    total = sum(int(str(line["quantity"])) * int(str(line["cents"])) for line in lines)
    customer = {"id": f"C-{chance.randint(1, 99999):05d}", "city": chance.choice(CITIES)}
    yield "created", {"order": order, "customer": customer, "lines": lines, "total_cents": total}
    if chance.random() < 0.07:
        yield "cancelled", {"order": order, "reason": chance.choice(("customer", "payment", "stock"))}
        return
    yield "paid", {"order": order, "cents": total, "method": chance.choice(("card", "invoice", "transfer"))}
    yield "packed", {"order": order, "parcels": 1 + len(lines) // 3}
    carrier = chance.choice(CARRIERS)
    yield "shipped", {"order": order, "carrier": carrier, "tracking": f"{chance.getrandbits(48):012X}"}
    yield "delivered", {"order": order}
    if chance.random() < 0.04:
        yield "refunded", {"order": order, "cents": chance.randint(1, total)}
