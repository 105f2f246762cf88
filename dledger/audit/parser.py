"""An argument parser that answers a wrong word with the one that was probably meant."""

from __future__ import annotations

import argparse
import re
from difflib import get_close_matches
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Words are not abbreviated: a script must not change its meaning when an option is added."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})  # type: ignore[arg-type]
        self._given: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; what was given is kept for the hint."""
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the message, with a hint where one is close, and end with 2."""
        super().error(message + self._hint(message))

    def _hint(self, message: str) -> str:
        wrong = message.partition("unrecognized arguments:")[2].split()
        wrong += re.findall(r"'([^']*)'", message.partition("(choose from")[0])
        if "arguments are required" in message:  # perhaps one is there, misspelt
            options = [word.partition("=")[0] for word in self._given if word.startswith("--")]
            wrong += [option for option in options if option not in self._option_string_actions]
        for word in wrong:
            close = get_close_matches(word, self.words(), n=1)
            if close and close[0] != word:
                return f"; did you mean {close[0]!r}?"
        return ""

    def words(self) -> list[str]:
        """All options and choices, those of subcommands too (what they do not know is reported here)."""
        words = list(self._option_string_actions)
        for action in self._actions:
            words += map(str, action.choices or ())
            if isinstance(action.choices, dict):
                for parser in action.choices.values():
                    words += parser.words() if isinstance(parser, Parser) else ()
        return words
