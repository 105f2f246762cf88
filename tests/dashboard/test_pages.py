"""The pages of the dashboard: what they show of data, and that texts of the cluster stay texts."""

from __future__ import annotations

import hashlib
import re
import shlex
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import msgspec
import page_data
import pytest

from dledger.commands.app import command as root
from dledger.dashboard.pages import groups, messages, nodes, overview
from dledger.dashboard.pages.page import Asked, Page
from dledger.dashboard.pages.registry import PAGES
from dledger.dashboard.rendering import Links, json_text, render, time_of
from dledger.dashboard.watching import SILENT as SILENT_TEXT
from dledger.dashboard.watching import Answer, NodeView, views_of
from dledger.dashboard.wording import LANGUAGES, Wording, texts_of
from dledger.remoting.node_report import LogReport, NodeReport, PeerReport, RoleChange

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
        languages=dict.fromkeys(LANGUAGES, f"/cluster/x?q={page_data.HOSTILE}"),
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
    used |= {f"not everything: {reason}" for reason in messages.LIMITS}
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


def node(id_: str, **more: Any) -> NodeView:
    return NodeView("b", id_, f"a-{id_}", **({"reached": True, "term": 1} | more))


LEADS = {"serving": True, "connected": True, "leader": "n0"}
FOLLOWS = {"connected": True, "leader": "n0"}
SILENT = {"reached": False, "term": None}


@pytest.mark.parametrize(
    ("nodes_", "state", "reached", "of", "spare", "leader"),
    [
        ([node("n0", **LEADS), node("n1", **FOLLOWS), node("n2", **FOLLOWS)], "well", 3, 3, 1, "n0"),
        ([node("n0", **LEADS), node("n1", **FOLLOWS), node("n2", **SILENT)], "at-risk", 2, 3, 0, "n0"),
        ([node("n0", **LEADS), node("n1", **FOLLOWS), node("n2", connected=False)], "at-risk", 2, 3, 0, "n0"),
        ([node("n0"), node("n1"), node("n2", **SILENT)], "down", 2, 3, 0, None),
        ([node("n0", **SILENT), node("n1", **FOLLOWS), node("n2", **FOLLOWS)], "hidden", 2, 3, 0, "n0"),
        ([node("n0", **SILENT), node("n1", **SILENT), node("n2", **SILENT)], "unknown", 0, 3, 0, None),
        # While the network is parted, two serve: the one with the higher term leads.
        ([node("n0", **LEADS), node("n1", **(LEADS | {"term": 2})), node("n2")], "well", 3, 3, 1, "n1"),
        # A learner counts for nothing.
        ([node("n0", **LEADS), node("n1", voter=False, **SILENT)], "well", 1, 1, 0, "n0"),
        ([], "unknown", 0, 0, 0, None),
    ],
)
def test_the_health_of_a_group(
    nodes_: list[NodeView], state: str, reached: int, of: int, spare: int, leader: str | None
) -> None:
    found = overview.health_of("b", {one.id: one for one in nodes_})
    assert (found.state, found.reached, found.nodes) == (state, reached, of)
    assert (found.spare, found.leader) == (spare, leader)


def test_a_master_of_apache_has_nobody_who_takes_over() -> None:
    master = NodeView("c", "0", "a0", reached=True, role="SYNC_MASTER", serving=True)
    slave = NodeView("c", "1", "a1", reached=True, role="SLAVE")
    found = overview.health_of("c", {"0": master, "1": slave})
    assert (found.state, found.spare, found.leader) == ("without-failover", 0, "0")


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
    ("members", "rate", "model", "reasons"),
    [
        (0, 0.0, "", ["no member"]),
        (1, 0.0, "CLUSTERING", ["nothing consumed"]),
        (3, 5.0, "CLUSTERING", ["more members than queues"]),
        (3, 5.0, "BROADCASTING", []),
        (2, 5.0, "CLUSTERING", []),
    ],
)
def test_why_a_group_is_slow(members: int, rate: float, model: str, reasons: list[str]) -> None:
    row = groups.GroupRow("g", members, model, 9, rate, 0)
    queues = [groups.QueueOffset("t", "b", number, 1, 5, 0) for number in range(2)]
    queues.append(groups.QueueOffset("%RETRY%g", "b", 0, 0, 0, 0))
    assert groups.reasons_of(row, queues) == reasons
    assert groups.reasons_of(msgspec.structs.replace(row, behind=0), queues) == []


def test_names_in_addresses_are_quoted() -> None:
    link = Links("main")
    assert link("topic", topic="%RETRY%g/x?") == "/main/topics/%25RETRY%25g%2Fx%3F"
    assert link("topics", {"q": "a&b", "kind": "", "page": 2}) == "/main/topics?q=a%26b&page=2"


def test_data_of_charts_cannot_end_its_element() -> None:
    assert "</script" not in json_text({"a": "</script><script>"})
    assert time_of(0) == "–" == time_of(10**18)


def report(id_: str, **more: Any) -> NodeReport:
    log = LogReport(
        voters=("n0", "n1", "n2"),
        learners=("n3",),
        peers={"n1": PeerReport(True, 4), "n2": PeerReport(False, 9)},
        committed_index=7,
    )
    members = {"n0": "h:0", "n1": "h:1", "n2": "", "n3": ""}
    return NodeReport(id=id_, role="FOLLOWER", term=3, leader="n0", members=members, node=log, **more)


def test_the_nodes_of_a_group_are_those_that_its_leader_names() -> None:
    """A node that is registered, and that nobody is connected to, is one node and not two."""
    registered = {"h:0": "0", "h:1": "1", "h:2": "2"}
    answers: dict[str, Answer] = {"h:0": (report("n0", serving=True), {}), "h:1": (report("n1"), {})}
    before = {"n3": NodeView("b", "n3", "h:3", reached=True)}
    found = {one.id: one for one in views_of("b", registered, answers, {"h:2": SILENT_TEXT}, before)}
    assert {id_: (one.reached, one.voter) for id_, one in found.items()} == {
        "n0": (True, True),
        "n1": (True, True),
        "n2": (False, True),
        "n3": (False, False),
    }
    assert (found["n1"].connected, found["n1"].lag_entries) == (True, 4)
    assert (found["n3"].address, found["n3"].problem) == ("h:3", "it is not connected")


def test_the_only_silent_address_belongs_to_the_only_missing_node() -> None:
    whole = report("n0", serving=True)
    three = msgspec.structs.replace(whole, node=msgspec.structs.replace(whole.node, learners=()))
    answers: dict[str, Answer] = {"h:0": (three, {}), "h:1": (report("n1"), {})}
    found = views_of("b", {"h:2": "2"}, answers, {"h:2": SILENT_TEXT}, {})
    assert [(one.id, one.address, one.problem) for one in found if not one.reached] == [
        ("n2", "h:2", SILENT_TEXT)
    ]


def test_what_a_broker_of_apache_answers() -> None:
    runtime = {"brokerRole": "SLAVE", "putTps": "1.5 2 3", "bootTimestamp": "--5"}
    (found,) = views_of("b", {"h:1": "1"}, {"h:1": (None, runtime)}, {}, {})
    assert (found.role, found.serving, found.rate_in, found.booted_ms) == ("SLAVE", False, 1.5, None)
    assert (found.term, found.rate_out) == (None, None)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"a": [1]}', '{\n  "a": [\n    1\n  ]\n}'),
        (b"5", None),
        (b"{", None),
        (b'["\\ud800"]', None),
        (b"[" * 480 + b"1," * 30_000 + b"1" + b"]" * 480, None),
        (b"[" * 100_000, None),
    ],
)
def test_json_is_shown_with_one_value_a_line_unless_that_is_too_long(body: bytes, wanted: str | None) -> None:
    assert messages._pretty(body) == wanted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize("hostile", ["$(touch x)", "a b", "x;y", "--json"])
def test_the_command_of_a_page_is_one_that_exists_and_quotes_its_names(page: Page, hostile: str) -> None:
    names = dict.fromkeys(re.findall(r"{(\w+)}", page.path), hostile)
    for words in ({}, {"topic": hostile, "key": hostile}, {"topic": hostile, "tag": hostile, "since": "2h"}):
        asked = Asked(None, None, names, words)  # type: ignore[arg-type]
        parts = shlex.split(page.command(asked))
        assert parts[0] == "dledger"
        for part in parts:
            assert hostile not in part or part in (hostile, f"--tags={hostile}"), parts
        command: click.Command = root
        rest = parts[1:]
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), rest[0])
            assert found is not None, parts
            command, rest = found, rest[1:]
        command.make_parser(click.Context(command)).parse_args(list(rest))


def test_words_of_an_address() -> None:
    asked = Asked(None, None, {}, {"page": "2", "q": " x ", "long": "a" * 9999})  # type: ignore[arg-type]
    assert (asked.number("page", 1), asked.word("q"), len(asked.word("long"))) == (2, "x", 512)
