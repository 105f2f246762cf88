"""Configuration files: what is read, and what an error says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dledger.remoting.properties_file import ConfigError, format_config, load_config, parse_properties


@dataclass(frozen=True)
class Config:
    name: str
    listenPort: int = 9876
    ratio: float = 0.5
    autoCreateTopicEnable: bool = True
    logDir: str | None = None

    def __post_init__(self) -> None:
        if self.listenPort > 65535:
            raise ValueError(f"listenPort must be at most 65535, not {self.listenPort}")


def load(text: str, **options: object) -> Config:
    return load_config(Config, parse_properties(text, "broker.conf"), **options)  # type: ignore[arg-type]


def test_values_take_the_types_of_their_fields() -> None:
    text = "name=a\n\n# comment\n! also\n listenPort = 1 \nratio: 0.25\n"
    assert load(text + "autoCreateTopicEnable FALSE\nlogDir=/x=y\n") == Config("a", 1, 0.25, False, "/x=y")


def test_defaults_hold_for_what_is_not_said() -> None:
    assert load("name=") == Config("")


def test_a_line_can_be_continued() -> None:
    assert load("name=n0-a:1;\\\n   n1-b:2\nlistenPort=5").name == "n0-a:1;n1-b:2"


def test_aliases_and_ignored_names() -> None:
    config = load(
        "title=x\nserverWorkerThreads=8", aliases={"title": "name"}, ignored=["serverWorkerThreads"]
    )
    assert config.name == "x"


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "name=a\nlistenport=5",
            r"broker.conf, line 2: unknown key 'listenport' \(did you mean 'listenPort'\?\)",
        ),
        ("name=a\nzzz=5", r"broker.conf, line 2: unknown key 'zzz'$"),
        ("name=a\n\nlistenPort=abc", r"broker.conf, line 3: the key 'listenPort': a whole number .* 'abc'"),
        ("name=a\nratio=x", r"line 2: the key 'ratio': a number is expected"),
        ("name=a\nautoCreateTopicEnable=maybe", r"line 2: .*true or false is expected, not 'maybe'"),
        ("name=a\nname=b", r"line 2: the key 'name' was already set at broker.conf, line 1"),
        ("name=a\njust text here", r"line 2: unknown key 'just'"),
        ("name=a\nword", r"line 2: the key 'word' has no value"),
        ("=5", r"line 1: a key is missing"),
        ("listenPort=5", r"the key 'name' is missing"),
        ("name=a\nlistenPort=70000", r"broker.conf, line 2: listenPort must be at most 65535, not 70000"),
    ],
)
def test_an_error_names_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text)


def test_the_effective_configuration_reads_as_itself() -> None:
    config = Config("a", 5, 0.25, False, None)
    assert load(format_config(config).replace("logDir=\n", "")) == config
