"""The pages of the dashboard: what they show of data, and that texts of the cluster stay texts."""

from __future__ import annotations

import hashlib
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import page_data
import pytest

from dledger.dashboard.pages import groups, nodes, overview
from dledger.dashboard.pages.page import Asked, Page
from dledger.dashboard.pages.registry import PAGES
from dledger.dashboard.rendering import Links, json_text, render, time_of
from dledger.dashboard.watching import NodeView, RoleChange, node_view
from dledger.dashboard.wording import LANGUAGES, Wording, texts_of

DASHBOARD = Path(__file__).resolve().parents[2] / "dledger" / "dashboard"


def rendered(page: Page, language: str = "en", *, only_main: bool = False) -> str:
    return render(
        page,
        page_data.DATA[page.name],
        wording=Wording(language),
        cluster="cluster",
        clusters=("cluster", "other"),
        command=f"dledger topic show {page_data.HOSTILE}",
        address=f"/cluster/x?q={page_data.HOSTILE}",
        only_main=only_main,
    )


class Elements(HTMLParser):
    """Collects the elements of a page, and checks that each is closed where it was opened."""

    VOID = frozenset(("meta", "link", "input", "rect", "br"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script" and not any(name == "src" for name, _ in attrs)
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs), (tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_there_is_data_for_every_page() -> None:
    assert sorted(page_data.DATA) == sorted(page.name for page in PAGES)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_texts_of_the_cluster_are_shown_as_texts(page: Page, language: str) -> None:
    text = rendered(page, language)
    elements = Elements()
    elements.feed(text)
    assert elements.open == []
    charts = text.count("data-chart")
    assert elements.scripts == charts, "no script but the data of charts"
    assert page_data.SHOWN in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_changing_part_is_a_part_of_the_page(page: Page) -> None:
    part = rendered(page, only_main=True)
    assert part.startswith("<h1>") and f'tabindex="-1">{part}</main>' in rendered(page)


def test_every_text_of_the_pages_has_a_translation_and_none_is_left_over() -> None:
    used = {page.title for page in PAGES}
    for path in DASHBOARD.glob("templates/*.html"):
        found = re.findall(r'\bt\("([^"]+)"( ~ )?', path.read_text(encoding="utf-8"))
        used |= {text for text, joined in found if not joined}
    used |= {"it does not answer", "it is not connected", "all", "normal", "retry", "dead-letter", "system"}
    used |= {f"Why it is slow: {reason}" for reason in groups.REASONS}
    server = (DASHBOARD / "server.py").read_text(encoding="utf-8")
    used |= set(re.findall(r'return \d+, "([^"]+)"', server)) | {"Clusters"}
    for language in LANGUAGES:
        if language != "en":
            assert set(texts_of(language)) == used
            for english, text in texts_of(language).items():
                blanks = re.findall(r"\{\w+\}", english)
                assert sorted(re.findall(r"\{\w+\}", text)) == sorted(blanks), english


def test_libraries_of_others_are_what_their_packages_hold() -> None:
    rows = tomllib.loads((DASHBOARD / "vendor" / "vendor.toml").read_text(encoding="utf-8"))["files"]
    known = {"vendor.toml"}
    for row in rows:
        content = (DASHBOARD / "vendor" / row["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row["sha256"], row["file"]
        known |= {row["file"], row["licence_file"]}
    assert {path.name for path in (DASHBOARD / "vendor").iterdir()} == known


@pytest.mark.parametrize(
    ("reached", "leads", "state", "spare"),
    [(3, True, "well", 1), (2, True, "at-risk", 0), (2, False, "down", 0), (1, False, "down", 0)],
)
def test_the_health_of_a_group(reached: int, leads: bool, state: str, spare: int) -> None:
    nodes_ = {
        f"a{number}": NodeView(
            "b", f"n{number}", f"a{number}", reached=number < reached, term=1, serving=leads and number == 0
        )
        for number in range(3)
    }
    found = overview.health_of("b", nodes_)
    assert (found.state, found.nodes, found.reached, found.spare) == (state, 3, reached, spare)
    assert found.leader == ("n0" if leads else None)


def test_a_learner_counts_for_nothing_and_a_group_of_apache_has_no_quorum() -> None:
    voter = NodeView("b", "n0", "a0", reached=True, term=1, serving=True)
    learner = NodeView("b", "n1", "a1", reached=True, term=1, voter=False)
    assert overview.health_of("b", {"a0": voter, "a1": learner}).nodes == 1
    master = NodeView("c", "0", "a0", reached=True, role="SYNC_MASTER", serving=True)
    slave = NodeView("c", "1", "a1", reached=True, role="SLAVE")
    assert overview.health_of("c", {"a0": master, "a1": slave}).spare == 1


def test_the_times_of_roles_begin_and_end_within_the_hour() -> None:
    changes = (
        RoleChange(100, "FOLLOWER", 1, None, "the node started"),
        RoleChange(900, "CANDIDATE", 2, None, "time-out"),
        RoleChange(950, "LEADER", 2, None, "votes"),
        RoleChange(960, "LEADER", 2, "n0", ""),
    )
    found = nodes.spans_of("n0", changes, 500, 1000)
    assert [(one.begin_ms, one.end_ms, one.role) for one in found] == [
        (500, 900, "FOLLOWER"),
        (900, 950, "CANDIDATE"),
        (950, 1000, "LEADER"),
    ]
    assert nodes.spans_of("n0", changes, 1000, 2000)[0].role == "LEADER"
    assert nodes.spans_of("n0", (), 0, 1) == []


@pytest.mark.parametrize(
    ("members", "rate", "late", "reasons"),
    [
        (0, 0.0, (90.0, 0.0), ["no member"]),
        (1, 5.0, (90.0, 0.0), ["stuck queues"]),
        (1, 0.0, (90.0, 0.0), ["nothing consumed"]),
        (3, 5.0, (0.5, 0.5), ["more members than queues"]),
        (1, 5.0, (0.5, 0.5), []),
    ],
)
def test_why_a_group_is_slow(
    members: int, rate: float, late: tuple[float, float], reasons: list[str]
) -> None:
    row = groups.GroupRow("g", members, "CLUSTERING", 9, max(late), rate, 0)
    queues = [groups.QueueOffset("t", "b", number, 1, 5 if s else 1, s) for number, s in enumerate(late)]
    assert groups.reasons_of(row, queues) == reasons
    assert groups.reasons_of(msgspec.structs.replace(row, behind=0), queues) == []


def test_names_in_addresses_are_quoted() -> None:
    link = Links("main")
    assert link("topic", topic="%RETRY%g/x?") == "/main/topics/%25RETRY%25g%2Fx%3F"
    assert link("topics", {"q": "a&b", "kind": "", "page": 2}) == "/main/topics?q=a%26b&page=2"


def test_data_of_charts_cannot_end_its_element() -> None:
    assert "</script" not in json_text({"a": "</script><script>"})
    assert time_of(0) == "–" == time_of(10**18)


def test_what_a_broker_of_apache_answers() -> None:
    runtime = {
        "brokerRole": "SLAVE",
        "putTps": "1.5 2 3",
        "bootTimestamp": "17",
        "brokerVersionDesc": "V5_3_3",
    }
    found = node_view("b", "10.0.0.1:10911", {}, runtime, {})
    assert (found.role, found.serving, found.rate_in, found.booted_ms) == ("SLAVE", False, 1.5, 17)
    assert (found.term, found.rate_out) == (None, None)


def test_words_of_an_address() -> None:
    asked = Asked(None, None, {}, {"page": "2", "q": " x ", "long": "a" * 9999})  # type: ignore[arg-type]
    assert (asked.number("page", 1), asked.word("q"), len(asked.word("long"))) == (2, "x", 512)
