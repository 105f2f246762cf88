"""Settings by declaration: what is read, what an error says, hints, overrides and changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from dledger.runtime.properties_file import parse_properties
from dledger.runtime.settings import ConfigError, Property, Schema, Setting, directory, name, names
from dledger.runtime.settings_page import meaning_of, table


@dataclass(frozen=True)
class Waits:
    least_s: Annotated[float, Setting("leastMs", 1, 1000, "ms", hot=True)] = 0.1
    """Shortest wait."""
    most_s: Annotated[float, Setting("mostMs", 1, 60_000, "ms", hot=True)] = 0.8
    """Longest wait: never
    below `leastMs`."""
    internal: int = 7

    def __post_init__(self) -> None:
        if self.most_s < self.least_s:
            raise ValueError("mostMs must not be below leastMs")


@dataclass(frozen=True)
class Config:
    name: Annotated[str, Setting("name", parse=name, important=True)] = ""
    """Name of the thing."""
    port: Annotated[int, Setting("listenPort", 1, 65535, important=True)] = 9876
    """Where."""
    full: Annotated[float, Setting("fullRatio", 10, 100, "percent", hot=True)] = 0.9
    """Share."""
    create: Annotated[bool, Setting("autoCreateTopicEnable", hot=True)] = True
    """Whether."""
    log_dir: Annotated[str | None, Setting("logDir")] = None
    """Directory; empty: none."""
    mode: Annotated[bool, Setting("flushDiskType", choices={"SYNC": True, "ASYNC": False})] = True
    """How."""
    others: Annotated[tuple[str, ...], Setting("others", parse=names, format=";".join)] = ()
    """Who else."""
    password: Annotated[str, Setting("password", secret=True)] = ""
    """Never shown."""
    size: Annotated[int, Setting("maxSize", 1, 1 << 20, "bytes", hot=True)] = 1 << 16
    """Most."""
    waits: Waits = field(default_factory=Waits)
    plain: int = 1

    def check(self, given: Collection[str]) -> None:
        if not self.name:
            raise ConfigError("name: missing")
        if "logDir" in given and self.port == 1:
            raise ConfigError("logDir has no effect with listenPort=1")


SCHEMA = Schema(Config, ignored={"serverWorkerThreads": "there are none"})
LENIENT = Schema(Config, ignored={"serverWorkerThreads": "there are none"}, lenient=True)


def load(text: str, schema: Schema[Config] = SCHEMA, overrides: Collection[Property] = ()) -> Config:
    return schema.load(parse_properties(text, "broker.conf"), overrides)[0]


def test_values_take_the_types_of_their_fields() -> None:
    config = load(
        "name=a\n\n# comment\n! also\n listenPort = 1 \nfullRatio: 85\nautoCreateTopicEnable FALSE\n"
        "flushDiskType=ASYNC\nothers=b; c;\nleastMs=250\nmostMs=900"
    )
    assert config == Config(
        "a", 1, 0.85, False, mode=False, others=("b", "c"), waits=Waits(least_s=0.25, most_s=0.9)
    )
    assert load("name=a\nlogDir=/x=y\n").log_dir == "/x=y"


def test_defaults_hold_for_what_is_not_said() -> None:
    assert load("name=a") == Config("a")


def test_names_that_are_ignored_on_purpose() -> None:
    assert load("name=x\nserverWorkerThreads=8").name == "x"


def test_a_line_can_be_continued() -> None:
    assert load("name=a\nothers=n0;\\\n   n1\nlistenPort=5").others == ("n0", "n1")


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "name=a\nlistenport=5",
            r"broker.conf, line 2: unknown key 'listenport' \(did you mean 'listenPort'\?\)",
        ),
        ("name=a\nzzz=5", r"broker.conf, line 2: unknown key 'zzz'$"),
        ("name=a\n\nlistenPort=abc", r"broker.conf, line 3: listenPort: 'abc': expected a whole number"),
        ("name=a\nlistenPort=1_0", r"line 2: listenPort: '1_0': expected a whole number"),
        ("name=a\nlistenPort=", r"line 2: listenPort: '': expected a whole number"),
        ("name=a\nlistenPort=70000", r"broker.conf, line 2: listenPort: 70000: expected 1 to 65535"),
        ("name=a\nfullRatio=0.9", r"line 2: fullRatio: '0.9': expected a whole number"),
        ("name=a\nfullRatio=101", r"line 2: fullRatio: 101: expected 10 to 100"),
        ("name=a\nautoCreateTopicEnable=maybe", r"line 2: .*'maybe': expected true or false"),
        ("name=a\nflushDiskType=NEVER", r"line 2: flushDiskType: 'NEVER': expected SYNC or ASYNC"),
        ("name=a\nothers=b;c d", r"line 2: others: 'c d': a name may not have blanks"),
        ("name=a\nname=b", r"line 2: the key 'name' is already set at broker.conf, line 1"),
        ("name=a\njust text here", r"line 2: unknown key 'just'"),
        ("name=a\nword", r"line 2: the key 'word' has no value"),
        ("=5", r"line 1: a key is missing"),
        ("listenPort=5", r"^name: missing$"),
        ("name=a\nleastMs=900", r"^broker.conf, line 2: mostMs must not be below leastMs"),
        ("name=a\nleastMs=900\nmostMs=800", r"^broker.conf, line 3: mostMs must not be below leastMs"),
        ("name=a\nlistenPort=1\nlogDir=/x", r"^broker.conf, line 3: logDir has no effect with listenPort=1"),
    ],
)
def test_an_error_names_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text)


@pytest.mark.parametrize("text, fits", [("1", True), ("1000", True), ("0", False), ("1001", False)])
def test_bounds_are_in_the_unit_of_the_property(text: str, fits: bool) -> None:
    if fits:
        assert load(f"name=a\nmostMs=1000\nleastMs={text}").waits.least_s == int(text) / 1000
    else:
        with pytest.raises(ConfigError, match=f"leastMs: {text}: expected 1 to 1000"):
            load(f"name=a\nleastMs={text}")


def test_where_unknown_names_are_tolerated_a_near_miss_is_none_the_less_an_error() -> None:
    config, warnings = LENIENT.load({"name": "a", "useEpollNativeSelector": "true"})
    assert config == Config("a") and warnings == ["unknown key 'useEpollNativeSelector' is ignored"]
    with pytest.raises(ConfigError, match="did you mean 'listenPort'"):
        LENIENT.load({"name": "a", "listenPrt": "5"})


def test_a_command_line_wins_over_the_file_and_is_taken_strictly() -> None:
    config = load("name=a\nlistenPort=5\nleastMs=3", overrides=[Property("listenPort", "6")])
    assert (config.port, config.waits.least_s) == (6, 0.003)
    with pytest.raises(ConfigError, match=r"^unknown key 'useEpollNativeSelector'$"):
        load("name=a", LENIENT, [Property("useEpollNativeSelector", "true")])
    with pytest.raises(ConfigError, match=r"^listenPort: 0: expected 1 to 65535"):
        load("name=a\nlistenPort=5", overrides=[Property("listenPort", "0")])
    with pytest.raises(ConfigError, match=r"^mostMs must not"):
        load("name=a\nleastMs=900", overrides=[Property("mostMs", "10")])


def test_what_is_printed_reads_as_itself_without_secrets() -> None:
    config = Config("a", 5, 0.29, False, None, False, ("b", "c"), waits=Waits(0.0035 * 2, 0.8))
    assert SCHEMA.load(SCHEMA.format(config))[0] == config
    assert SCHEMA.format(config)["fullRatio"] == "29" and SCHEMA.format(config)["leastMs"] == "7"
    assert SCHEMA.format(Config("a", password="secret"))["password"] == "***"
    assert SCHEMA.format(config, important=True) == {"name": "a", "listenPort": "5"}


def change(config: Config, **properties: str) -> tuple[Config, dict[str, str]]:
    return SCHEMA.change(config, [Property(key, value) for key, value in properties.items()])


def test_a_change_of_what_may_change() -> None:
    before = Config("a", password="secret")
    after, texts = change(before, leastMs="200", fullRatio="90", autoCreateTopicEnable="False")
    assert after == Config("a", create=False, password="secret", waits=Waits(least_s=0.2))
    assert texts == {"leastMs": "200", "autoCreateTopicEnable": "false"}, "90 percent it was before"
    shown = SCHEMA.format(before)
    assert change(before, **shown) == (before, {}), "all that a tool was shown may come back"


@pytest.mark.parametrize(
    "properties, message",
    [
        ({"leastMs": "5", "listenPort": "6"}, "listenPort cannot change while this process runs: .*restart"),
        ({"leastMs": "5", "mostMs": "4"}, "mostMs must not be below leastMs"),
        ({"leastMs": "5", "fullRatio": "high"}, "fullRatio: 'high': expected a whole number"),
        ({"leastMs": "5", "mostM": "4"}, r"unknown key 'mostM' \(did you mean 'mostMs'\?\)"),
        ({"leastMs": "5", "serverWorkerThreads": "4"}, "serverWorkerThreads has no effect here: there are"),
    ],
)
def test_a_change_that_cannot_be_is_refused_whole(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change(Config("a"), **properties)


def test_declarations_that_cannot_work_are_errors_of_the_programmer() -> None:
    @dataclass(frozen=True)
    class Twice:
        one: Annotated[int, Setting("same")] = 1
        two: Annotated[int, Setting("same")] = 2

    with pytest.raises(TypeError, match="declares a property twice"):
        Schema(Twice)

    @dataclass(frozen=True)
    class Untold:
        many: Annotated[tuple[str, ...], Setting("many")] = ()

    with pytest.raises(TypeError, match="needs parse and format"):
        Schema(Untold)
    with pytest.raises(ValueError, match=r"Untold\.many: a text below it must say"):
        meaning_of(Untold, ("many",))


def test_the_table_of_a_page() -> None:
    rows = table(SCHEMA, lambda one: one.setting.name in ("mostMs", "maxSize", "flushDiskType", "logDir"))
    assert rows.splitlines()[2:] == [
        "| `logDir` | Directory; empty: none | | | |",
        "| `flushDiskType` | How | SYNC | `SYNC`, `ASYNC` | |",
        "| `maxSize` | Most | 64 KiB | 1 to 1 MiB | live |",
        "| `mostMs` | Longest wait: never below `leastMs` | 800 ms | 1 to 60000 ms | live |",
    ]


def test_paths_and_names_with_a_comment_behind_them_are_refused() -> None:
    assert directory("/my data") == "/my data"
    for text in ("/data # large", "/data\t#large"):
        with pytest.raises(ValueError, match="write a comment on its own line"):
            directory(text)
    for text in ("", "a#b", "a b"):
        with pytest.raises(ValueError):
            name(text)
