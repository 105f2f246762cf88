"""What a report says in pictures, pages and files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.audit.advice import caution
from dledger.audit.coverage_picture import KINDS, Span, merge, pictures, subtract, terminal_lines
from dledger.audit.findings import finding
from dledger.audit.report import Report
from dledger.audit.report_files import render
from tests.audit.engine import audit
from tests.audit.faults import by_names
from tests.audit.store_builder import Log, sample_log, write_group
from tests.command_line import audit as run


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.fixture
def audited(log: Log, tmp_path: Path) -> Callable[..., Report]:
    def run_audit(*faults: str) -> Report:
        stores = write_group(log, tmp_path / "stores")
        for fault in by_names(*faults):
            fault.inject(stores, log)
        return audit(stores)

    return run_audit


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def points(of: list[Span]) -> set[int]:
    return {index for first, last in of for index in range(first, last + 1)}


@given(spans, spans)
def test_merge_and_subtract_are_those_of_sets(one: list[Span], two: list[Span]) -> None:
    merged = merge(one)
    assert points(merged) == points(one)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(merged))
    rest = subtract(merged, merge(two))
    assert points(rest) == points(one) - points(two)
    assert all(first <= last for first, last in rest)


def replica(name: str, held: list[list[int]], committed: int) -> dict[str, object]:
    return {
        "replica": name,
        "held": held,
        "committed_index": committed,
        "group": "g",
        "entries": 0,
        "bytes": 0,
    }


def test_every_index_of_a_strip_has_one_state() -> None:
    report = Report(
        [replica("a", [[10, 49], [60, 120]], 99), replica("b", [[0, 79]], 79), replica("c", [], -1)],
        79,
        [
            finding("BIT_ROT", "a", "x", first=20, last=22),
            finding("DIVERGENT_COMMITTED", "a,b", "x", first=22),
            finding("MISSING_SEGMENT", "a", "x", first=50, last=55),
        ],
    )
    (drawn,) = pictures(report)
    assert (drawn.first, drawn.last) == (0, 120)
    a, b, c = drawn.strips
    assert a.spans == {
        "divergent": [(22, 22)],
        "corrupt": [(20, 21)],
        "missing": [(50, 55)],
        "unread": [(56, 59)],
        "uncommitted": [(100, 120)],
        "read": [(10, 19), (23, 49), (60, 99)],
        "retired": [(0, 9)],
    }
    assert b.spans == {
        "divergent": [(22, 22)],
        "read": [(0, 21), (23, 79)],
        "lagging": [(80, 99)],
    }
    assert c.spans == {"lagging": [(0, 99)]}


def test_groups_are_drawn_apart() -> None:
    """The log of one says nothing of how far another one should be."""
    long, short = replica("one/a", [[0, 999]], 999), replica("two/a", [[0, 9]], 9) | {"group": "h"}
    fields = {"first_index": 0, "end_index": 0, "last_term": 0, "segments": 1, "store": "s"}
    report = Report([long | fields, short | fields], 9, [])
    assert [(drawn.group, drawn.last) for drawn in pictures(report)] == [("g", 999), ("h", 9)]
    assert [drawn.strips[0].spans for drawn in pictures(report)] == [{"read": [(0, 999)]}, {"read": [(0, 9)]}]
    shown = " ".join(read_page(report.page("now")).shown)
    assert "Coverage of g" in shown and "Coverage of h" in shown


@pytest.mark.parametrize(
    ("faults", "replica_number", "kind", "letter"),
    [
        (("flipped body byte",), 0, "corrupt", "X"),
        (("deleted segment",), 1, "missing", "_"),
        (("rewritten committed entry",), 2, "divergent", "!"),
        (("lagging replica",), 1, "lagging", "."),
        (("uncommitted tail of another term",), 2, "uncommitted", "~"),
        (("unreadable segment",), 0, "unread", "?"),
    ],
)
def test_faults_are_seen_where_they_are(
    faults: tuple[str, ...], replica_number: int, kind: str, letter: str, audited: Callable[..., Report]
) -> None:
    (drawn,) = pictures(audited(*faults))
    kinds = [set(strip.spans) - {"read"} for strip in drawn.strips]
    assert kind in kinds[replica_number]
    lines = list(terminal_lines(drawn))
    assert letter in lines[replica_number]
    assert f"{letter} {kind}" in lines[-1]
    others = [found for number, found in enumerate(kinds) if number != replica_number]
    assert all(not found <= {"corrupt", "missing", "divergent"} or not found for found in others)


def test_one_entry_of_a_million_is_seen_in_the_terminal() -> None:
    report = Report([replica("a", [[0, 999_999]], 999_999)], 0, [finding("BIT_ROT", "a", "x", first=500_000)])
    line = next(terminal_lines(pictures(report)[0]))
    assert line.count("X") == 1 and line.count("=") == 63


class Reader(HTMLParser):
    """Checks nesting, and keeps what a page refers to and shows."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.shown: list[str] = []
        self.classes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe"), "the page is alone and still"
        given = dict(attrs)
        assert not {"src", "href"} & given.keys()
        self.classes += (given.get("class") or "").split()
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.shown.append(data)


def read_page(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert "url(" not in page and "@import" not in page
    return reader


def test_the_page_shows_verdict_advice_strips_and_findings(audited: Callable[..., Report]) -> None:
    page = read_page(audited("flipped body byte", "deleted segment").page("2026-11-21 03:07 UTC"))
    text = " ".join(page.shown)
    assert "✖ ERRORS" in text and "2026-11-21 03:07 UTC" in text
    assert "BIT_ROT on n0" in text and "MISSING_SEGMENT on n1" in text
    assert "Repair one node at a time" in text
    assert {"corrupt", "missing", "read", "commit"} <= set(page.classes)
    assert re.search(r"corrupt 700\b", text)


def test_a_clean_page_has_no_advice(audited: Callable[..., Report]) -> None:
    text = " ".join(read_page(audited("nothing").page("now")).shown)
    assert "✔ CLEAN" in text and "the replicas agree" in text
    assert "What to do" not in text


def test_names_from_outside_are_escaped() -> None:
    evil = "<script>alert('x')</script>"
    report = Report(
        [replica(evil, [[0, 9]], 9) | dict.fromkeys(("first_index", "end_index", "last_term"), 0)
         | {"segments": 1, "store": evil}],
        9,
        [finding("BIT_ROT", evil, evil, first=1)],
    )  # fmt: skip
    read_page(report.page(evil))


def test_a_million_findings_make_a_page_of_bounded_size() -> None:
    findings = [finding("BIT_ROT", "a", "x", first=2 * number) for number in range(100_000)]
    fields = {"first_index": 0, "end_index": 0, "last_term": 0, "segments": 1, "store": "s"}
    page = Report([replica("a", [[0, 2_000_000]], 2_000_000) | fields], 0, findings).page("now")
    assert len(page) < 400_000


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ([finding("BIT_ROT", "a", "")], ""),
        ([finding("BIT_ROT", "a", ""), finding("BIT_ROT", "b", "")], "Repair one node at a time"),
        ([finding("BIT_ROT", "a", ""), finding("BELOW_QUORUM", "", "")], "Delete no store"),
        ([finding("BIT_ROT", "a", ""), finding("UNREADABLE", "b", "")], "Delete no store"),
        ([finding("BIT_ROT", "a", ""), finding("MISSING_SEGMENT", "b", "")], "Repair one node at a time"),
        ([finding("INDEX_FILE", "a", ""), finding("INDEX_FILE", "b", "")], ""),
    ],
)
def test_repairs_that_lose_data_together_are_warned_of(findings: list[object], words: str) -> None:
    said = caution(findings)  # type: ignore[arg-type]
    assert said.startswith(words) and bool(said) == bool(words)


def test_reports_go_to_files_by_their_ending(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path / "stores")
    next(by_names("wrong index unit")).inject(stores, log)
    files = [tmp_path / f"report{ending}" for ending in (".html", ".json", ".txt")]
    options = [part for file in files for part in ("--report", str(file))]
    assert run(["compare", *options, *map(str, stores)]) == 1
    page, told, lines = (file.read_text() for file in files)
    read_page(page)
    assert json.loads(told)["verdict"] == "warnings"
    assert "INDEX_FILE" in lines
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.html",
        "report.json",
        "report.txt",
        "stores",
    ]


def test_rows_for_parquet_hold_the_run_its_replicas_and_findings(audited: Callable[..., Report]) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import io

    report = audited("flipped body byte")
    table = pq.read_table(io.BytesIO(render(report, "x.parquet", 1_700_000_000_000)))
    rows = table.to_pylist()
    assert [row["kind"] for row in rows] == ["run", "replica", "replica", "replica", "finding"]
    assert rows[0]["severity"] == "errors" and rows[0]["entries"] == report.entries
    assert (rows[4]["code"], rows[4]["replica"], rows[4]["group"]) == ("BIT_ROT", "n0", "g0")
    assert {row["run"].timestamp() for row in rows} == {1_700_000_000}


@pytest.mark.parametrize(
    ("fault", "threshold", "code"),
    [
        ("wrong index unit", "warning", 1),
        ("wrong index unit", "error", 0),
        ("flipped body byte", "error", 2),
        ("flipped body byte", "critical", 0),
        ("rewritten committed entry", "critical", 3),
        ("unreadable segment", "critical", 4),
    ],
)
def test_fail_on_decides_the_exit_code(
    fault: str, threshold: str, code: int, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = write_group(log, tmp_path)
    next(by_names(fault)).inject(stores, log)
    assert run(["compare", "--json", "--fail-on", threshold, *map(str, stores)]) == code
    assert json.loads(capsys.readouterr().out)["exit_code"] >= code, "the verdict stays what it is"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report.htm", "did you mean '.html'"),
        ("report", "does not end in one of"),
        ("/no/such/place/report.json", "no such directory"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_work(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "--report", name, "/nothing"]) == 4
    assert words in capsys.readouterr().err


def test_every_kind_of_stretch_has_a_letter_of_its_own() -> None:
    assert len({kind.letter for kind in KINDS}) == len(KINDS)
