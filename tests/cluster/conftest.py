"""Groups of real processes for the tests of this folder; every test here is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def new_group(tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    """Make and start groups that end with the test; keyword arguments are those of `ClusterSpec`."""
    groups: list[LocalCluster] = []

    def make(**settings: object) -> LocalCluster:
        defaults: dict[str, object] = {"base_port": find_base_port(start=24000), "segment_size": 16 * MIB}
        spec = ClusterSpec(**{**defaults, **settings})  # type: ignore[arg-type]
        group = LocalCluster.create(tmp_path / f"group{len(groups)}", spec)
        groups.append(group)
        group.start()
        return group

    yield make
    for group in groups:
        group.stop()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One group for tests that leave it healthy."""
    spec = ClusterSpec(base_port=find_base_port(start=24000), segment_size=16 * MIB)
    cluster = LocalCluster.create(tmp_path_factory.mktemp("cluster") / "group", spec)
    cluster.start()
    yield cluster
    cluster.stop()
