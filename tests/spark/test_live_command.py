"""`dledger spark audit --namesrv`: which groups and places are chosen, and the local engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dledger.audit.findings import finding
from dledger.audit.replicas import StoreSource
from dledger.audit.report import Report
from dledger.runtime.files import OsFiles
from dledger.spark.places import Group, joined
from tests.audit.faults import by_names
from tests.audit.store_builder import sample_log, write_group
from tests.command_line import spark as run
from tests.spark.live_kit import live_group


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = run(["audit", "--engine", "local", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_a_live_group_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = sample_log(400)
    stores = write_group(log, tmp_path)
    with live_group(stores) as group:
        code, clean = result(capsys, "--namesrv", group.namesrv, "--cluster", "c0")
        assert (code, clean["verdict"], clean["entries"]) == (0, "clean", 3 * len(log.entries))
        stands = [str(replica["store"]) for replica in clean["replicas"]]  # type: ignore[attr-defined]
        assert stands[0].startswith(f"dledger://{group.brokers[0].address}/")
        next(by_names("poisoned")).inject(stores, log)
        group.stop(1)
        code, mixed = result(capsys, "--namesrv", group.namesrv, "--group", "g0", str(stores[1]))
        assert (code, [found["code"] for found in mixed["findings"]]) == (1, ["POISONED"])  # type: ignore[attr-defined]
        code, alone = result(capsys, "--namesrv", group.namesrv)
        codes = [found["code"] for found in alone["findings"]]  # type: ignore[attr-defined]
        assert (code, codes) == (4, ["UNREACHABLE", "POISONED"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is nothing to audit: give store directories, --namesrv"),
        (("--group", "g0", "/nowhere"), "--group can only be used with --namesrv"),
        (("--max-age", "9", "/nowhere"), "--max-age can only be used with --namesrv"),
        (("--digests", "/d", "--cluster", "c0"), "--cluster can only be used with --namesrv; with --digests"),
        (("--master", "local[2]", "/nowhere"), "--master needs --engine spark"),
        (("/nowhere",), "no such directory"),
        (("nosuch://bucket/x",), "nosuch"),
        (("--namesrv", "nonsense"), "'nonsense': expected host:port"),
        (("--namesrv", "127.0.0.1:1"), "no NameServer answers"),
    ],
)
def test_what_cannot_be_looked_at_is_4(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = result(capsys, *arguments)
    assert code == 4
    assert said in told["findings"][0]["detail"]  # type: ignore[index]


def test_wrong_names_get_a_suggestion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live_group(write_group(sample_log(50), tmp_path)[:1], group="orders") as group:
        code, told = result(capsys, "--namesrv", group.namesrv, "--group", "order")
        assert code == 4
        assert "did you mean 'orders'?" in told["findings"][0]["detail"]  # type: ignore[index]


def test_several_groups_become_one_report() -> None:
    files = OsFiles()
    groups = [Group(name, (StoreSource(f"/{name}", files),)) for name in ("a", "b")]
    replica = {"replica": "n0", "entries": 7}
    reports = [
        Report([replica], 5, [finding("DIVERGENT_COMMITTED", "n0,n1", "x")], 1.5, members=3),
        Report([dict(replica)], 3, [finding("BELOW_QUORUM", "", "y")], 2.0, members=3),
    ]
    together = joined(groups, reports)
    assert [each["replica"] for each in together.replicas] == ["a/n0", "b/n0"]
    assert [found.replica for found in together.findings] == ["a/n0,a/n1", "b"]
    assert (together.compared_up_to, together.seconds, together.members) == (3, 3.5, 6)
    assert joined(groups[:1], reports[:1]) is reports[0]
