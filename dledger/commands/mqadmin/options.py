"""Options of a command, declared and read as Apache's mqadmin reads them (commons-cli's DefaultParser).
Pure.

`-t topic`, `-ttopic`, `-t=topic`, `--topic topic`, `--topic=topic` and `-topic topic` mean the same. A
long name may be abbreviated as long as it is unique. A word that looks like an option is never taken as a
value, except a negative number. Other words that are neither options nor values of options are ignored, as
in Apache's mqadmin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"-\d+(\.\d+)?")
HELP_WIDTH = 110


@dataclass(frozen=True)
class Option:
    """One option of a command. If `value` is False, the option is a switch without a value. Of all options
    with the same `one_of`, exactly one must be given."""

    short: str
    long: str
    text: str
    value: bool = True
    required: bool = False
    one_of: str = ""

    @property
    def names(self) -> str:
        """Short and long name of the option, as the help shows them."""
        short = f"-{self.short}," if self.short else "   "
        return f"{short}--{self.long}{' <arg>' if self.value else ''}"

    @property
    def key(self) -> str:
        """The key under which `Given` has the option's value."""
        return self.short or self.long


HELP = Option("h", "help", "Print help", value=False)
NAMESRV = Option("n", "namesrvAddr", "NameServers, eg: '192.168.0.1:9876;192.168.0.2:9876'")
JSON = Option("", "json", "Print JSON (not in Apache's mqadmin)", value=False)
EVERYWHERE = (HELP, NAMESRV, JSON)
"""Options that every command has. `--json` does not exist in Apache's mqadmin."""


class WrongOptions(Exception):
    """Raised if the command line does not fit the command."""


class Given:
    """The values of the options on a command line. Spaces around a value are removed, as Apache's commands
    do."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str) -> str:
        """Return a value that must have been given."""
        return self._values[key].strip()

    def maybe(self, key: str) -> str | None:
        """Return a value; None if it was not given."""
        return self.text(key) if key in self._values else None

    def number(self, key: str, default: int = 0) -> int:
        """Return a value that is a whole number. Raises WrongOptions for anything else."""
        value = self.maybe(key)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError as error:
            raise WrongOptions(f'For input string: "{value}": -{key} takes a whole number') from error

    def true(self, key: str, default: bool = False) -> bool:
        """Return whether the value is `true`, in upper or lower case; any other value is false, as in
        Java."""
        value = self.maybe(key)
        return default if value is None else value.lower() == "true"

    def words(self, key: str) -> list[str]:
        """Return the parts of a value that are separated by commas."""
        return [part.strip() for part in (self.maybe(key) or "").split(",") if part.strip()]


def parse(options: Sequence[Option], arguments: Sequence[str]) -> Given:
    """Read a command line. Raises WrongOptions if it does not fit the options. With `-h`, no other option
    is required."""
    return _Reading((*options, *EVERYWHERE), arguments).read()


class _Reading:
    def __init__(self, options: Sequence[Option], arguments: Sequence[str]) -> None:
        self._options = options
        self._short = {option.short: option for option in options if option.short}
        self._long = {option.long: option for option in options}
        self._waiting = list(arguments)
        self._values: dict[str, str] = {}

    def read(self) -> Given:
        while self._waiting:
            word = self._waiting.pop(0)
            if word == "--":
                break
            if word.startswith("--"):
                self._take_long(word, word[2:])
            elif word.startswith("-") and len(word) > 1:
                self._take_short(word)
        if HELP.key not in self._values:
            self._check()
        return Given(self._values)

    def _take_long(self, word: str, rest: str) -> None:
        name, equals, value = rest.partition("=")
        found = self._matching(name)
        if not found:
            raise WrongOptions(f"Unrecognized option: {word}")
        if len(found) > 1:
            names = ", ".join(f"'{option.long}'" for option in found)
            raise WrongOptions(f"Ambiguous option: '--{name}'  (could be: {names})")
        self._put(found[0], word, value if equals else None)

    def _take_short(self, word: str) -> None:
        rest = word[1:]
        name, equals, value = rest.partition("=")
        option = self._short.get(name)
        if option is not None:
            self._put(option, word, value if equals else None)
        elif self._matching(name):
            self._take_long(word, rest)
        else:
            option = self._short.get(rest[:1])
            if option is None or not option.value:
                raise WrongOptions(f"Unrecognized option: {word}")
            self._put(option, word, rest[1:])

    def _put(self, option: Option, word: str, value: str | None) -> None:
        if not option.value:
            if value is not None:
                raise WrongOptions(f"Unrecognized option: {word}")
            self._values[option.key] = ""
            return
        if value is None:
            if not self._waiting or self._is_option(self._waiting[0]):
                raise WrongOptions(f"Missing argument for option: {option.key}")
            value = self._waiting.pop(0)
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        self._values[option.key] = value

    def _is_option(self, word: str) -> bool:
        if not word.startswith("-") or len(word) == 1 or _NUMBER.fullmatch(word):
            return False
        name = word.lstrip("-").partition("=")[0]
        short = self._short.get(name[:1])
        return name in self._short or bool(self._matching(name)) or (short is not None and word[1] != "-")

    def _matching(self, name: str) -> list[Option]:
        exact = self._long.get(name)
        if exact is not None:
            return [exact]
        return [option for option in self._options if name and option.long.startswith(name)]

    def _check(self) -> None:
        groups: dict[str, list[Option]] = {}
        for option in self._options:
            if option.one_of:
                groups.setdefault(option.one_of, []).append(option)
        for members in groups.values():
            given = [option for option in members if option.key in self._values]
            if len(given) > 1:
                raise WrongOptions(
                    f"The option '{given[1].key}' was specified but an option from this group has already"
                    f" been selected: '{given[0].key}'"
                )
        missing = [
            option.key for option in self._options if option.required and option.key not in self._values
        ]
        missing += [
            "[" + ", ".join(option.names.replace(" <arg>", "") for option in members) + "]"
            for members in groups.values()
            if not any(option.key in self._values for option in members)
        ]
        if missing:
            raise WrongOptions(f"Missing required option{'s' if missing[1:] else ''}: {', '.join(missing)}")


def help_text(name: str, options: Sequence[Option]) -> str:
    """Return the help text of a command."""
    listed = sorted((*options, *EVERYWHERE), key=lambda option: option.key.lower())
    words, groups = [], []
    for option in listed:
        if option.one_of in groups:
            continue
        members = [other for other in listed if option.one_of and other.one_of == option.one_of]
        groups += [option.one_of] if members else []
        shown = " | ".join(_word(one) for one in members or [option])
        words.append(shown if option.required or members else f"[{shown}]")
    lines = [f"usage: dledger mqadmin {name}"]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > HELP_WIDTH:
            lines.append("      ")
        lines[-1] += f" {word}"
    width = max(len(option.names) for option in listed)
    lines += [f" {option.names:{width}}   {option.text}" for option in listed]
    return "\n".join(lines)


def _word(option: Option) -> str:
    return (f"-{option.short}" if option.short else f"--{option.long}") + (" <arg>" if option.value else "")
