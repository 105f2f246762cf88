"""The texts of the pages in English, and in the languages of `languages/`.

The English text is its own name: a template writes `t("Groups")`, and a language maps it to its text. A text
without a translation is shown in English; a test reports it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

LANGUAGES = MappingProxyType({"en": "English", "zh": "中文"})
"""Maps each language to its own name."""


@cache
def texts_of(language: str) -> Mapping[str, str]:
    """The translations of a language, from English texts; empty for English."""
    if language == "en":
        return {}
    path = resources.files("dledger.dashboard") / "languages" / f"{language}.toml"
    found: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))["texts"]
    return found


class Wording:
    """The texts of one language. An instance is called with an English text and the values of its blanks."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._texts = texts_of(language)

    def __call__(self, text: str, **values: object) -> str:
        """The text in this language. `{name}` in it is replaced by the value of that name."""
        found = self._texts.get(text, text)
        return found.format(**values) if values else found


def choose_language(asked: str, accepted: str) -> str:
    """The language of a reader. `asked` is what they chose themselves, or empty; `accepted` is the header
    Accept-Language of their browser.

    >>> choose_language("", "zh-CN,zh;q=0.9,en;q=0.8"), choose_language("en", "zh"), choose_language("", "fr")
    ('zh', 'en', 'en')
    """
    if asked in LANGUAGES:
        return asked
    for part in accepted.split(","):
        name = part.partition(";")[0].strip().lower().partition("-")[0]
        if name in LANGUAGES:
            return name
    return "en"
