"""What the README shows works as it stands there (but for the port and how long the consumer waits)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from dledger.local.cluster import LocalCluster

README = Path(__file__).resolve().parents[2] / "README.md"
ADDRESS = "127.0.0.1:9876"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_producer_and_the_consumer_of_the_readme(group: LocalCluster) -> None:
    producer, consumer = examples()
    for example in (producer, consumer):
        assert ADDRESS in example
        assert len(example.strip().splitlines()) <= 10
    acknowledged = run(producer.replace(ADDRESS, group.namesrv_addr)).splitlines()
    assert len(acknowledged) == 10
    received = run(
        consumer.replace(ADDRESS, group.namesrv_addr).replace("consumer.wait()", "consumer.wait(5)")
    )
    # The listener runs in several threads, so lines may be woven into each other.
    assert sorted(re.findall(r"order (\d)", received)) == [str(number) for number in range(10)]
