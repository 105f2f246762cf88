"""Settings from one declaration: `Annotated[int, Setting("maxMessageSize", 1, 4 << 20, "bytes")]`. Pure.

A configuration is a frozen dataclass. A field with a `Setting` is a property, which people set by its name. A
field may also be a dataclass with such fields; it is a group of settings. Any other field is for programs
only. The text below a field explains the field. Everything else follows from this: reading texts, bounds,
hints for wrong names, the output of `-p`, the tables of docs/reference/settings.md (`runtime.settings_page`),
and which settings may change while the process runs (`runtime.live_settings`).

A class may define `check(given)` to check which settings fit together; `given` holds the names that were set.
`check` and `__post_init__` raise ValueError. Its text begins with the name of the property, and this module
puts the place where the property was set before it. The text may have several lines, one for each error. A
class may also define `moved_defaults(given)`. This function gets the fields that a file sets, and returns new
defaults for other fields whose usual defaults do not fit them.
"""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

SECRET = "***"
"""Text that is shown in place of a secret."""
NEAR_UNKNOWN = 0.85
"""For programs in which an unknown name only causes a warning: an unknown name that is at least this similar
to a known one is an error even there."""
NEAR_HINT = 0.7
"""A known name that is at least this similar is shown as a hint."""
COMMENT = " (write a comment on its own line, beginning with #)"

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_WORD = re.compile(r"[A-Za-z][\w.]*\w")


class ConfigError(ValueError):
    """A configuration cannot be used. The text says where and why."""


class Protective(NamedTuple):
    """A property that makes RocketMQ safer, but has no effect in this project."""

    harmless: tuple[str, ...]
    """Values, in lower case, with which the property asks for nothing; with them it is ignored."""
    why: str
    """Text that says what is missing in this project, and what to do. A start with any other value is refused
    with this text."""


class Property(NamedTuple):
    """A property that a configuration file or a command line sets: its name and its value. `where` is its
    file and line, for messages; it is empty for a command line."""

    key: str
    value: str
    where: str = ""


PER_UNIT = {"ms": 1000, "percent": 100}
"""Maps the unit of a property to a factor. The value of the property is the value of its field (seconds, or a
share of 1) times this factor."""


@dataclass(frozen=True)
class Setting:
    """Declaration of a property: its name, bounds, unit and form. Its meaning is the text below the field."""

    name: str
    ge: float = -math.inf
    le: float = math.inf
    """`ge` and `le` are the bounds of values that people set, in `unit`. Programs and tests may pass other
    values to the class."""
    unit: str = ""
    _: KW_ONLY
    choices: Mapping[str, Any] | None = None
    """Maps each allowed word to its value."""
    parse: Callable[[str], Any] | None = None
    """Function that parses a text, for types that have no text form of their own. Its ValueError says what
    was expected. It must not be a lambda, because the text of an annotation is evaluated at a place where the
    names of its module are not known."""
    format: Callable[[Any], str] | None = None
    hot: bool = False
    """Whether the setting may change while the process runs. If so, code must read the current value each
    time, or register a listener."""
    important: bool = False
    """Whether the option `-m` prints the setting."""
    secret: bool = False


@dataclass(frozen=True)
class Declared:
    """A setting and its place in the configuration. `path` leads from the configuration to the field, whose
    type is `kind`."""

    setting: Setting
    path: tuple[str, ...]
    kind: Any
    optional: bool
    """Whether the field may be None. None is written as an empty text."""

    def value(self, config: object) -> Any:
        """Return the value of the field in this configuration."""
        for name in self.path:
            config = getattr(config, name)
        return config

    def parse(self, text: str) -> Any:
        """Convert a text into the field's value. Raises ValueError, which says what is expected."""
        setting = self.setting
        if self.optional and not text:
            return None
        if setting.parse is not None:
            return setting.parse(text)
        if setting.choices is not None:
            if text not in setting.choices:
                raise ValueError(f"{text!r}: expected {' or '.join(setting.choices)}")
            return setting.choices[text]
        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{text!r}: expected true or false")
            return text.lower() == "true"
        if self.kind is str:
            return text
        value = whole_number(text, setting.ge, setting.le)
        return value / PER_UNIT.get(setting.unit, 1) if self.kind is float else value

    def format(self, value: Any) -> str:
        """Convert a value into the text from which `parse` makes this value again."""
        setting = self.setting
        if value is None:
            return ""
        if setting.format is not None:
            return setting.format(value)
        if setting.choices is not None:
            return next(text for text, meant in setting.choices.items() if meant == value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return f"{value * PER_UNIT.get(setting.unit, 1):.15g}"
        return str(value)

    def shown(self, value: Any) -> str:
        """Return the same text as `format`, but hide a secret."""
        text = self.format(value)
        return SECRET if self.setting.secret and text else text


C = TypeVar("C")


class Schema(Generic[C]):
    """All settings of one configuration class. `C()` must work without arguments and give the defaults."""

    def __init__(
        self,
        type_: type[C],
        *,
        ignored: Mapping[str, str] | None = None,
        protective: Mapping[str, Protective] | None = None,
        foreign: Collection[str] = (),
        foreign_why: str = "",
        lenient: bool = False,
    ) -> None:
        """Collect the settings of a class.

        * `ignored` maps names of RocketMQ's properties that are accepted without effect to the reason.
        * `protective` has names that must not be ignored silently, because the program would be less
          protected, or data less durable, than the file says.
        * `foreign` has further names of RocketMQ's properties that files may contain without effect, all for
          the reason `foreign_why`. They are never given as hints.
        * `lenient`: an unknown name only causes a warning, unless it is similar to a known one.
        """
        self.type = type_
        self.ignored: Mapping[str, str] = ignored or {}
        self._foreign = dict.fromkeys(foreign, foreign_why)
        self._protective = protective or {}
        self.settings: tuple[Declared, ...] = tuple(_declared(type_, ()))
        self._lenient = lenient
        self._by_name = {one.setting.name: one for one in self.settings}
        if len(self._by_name) < len(self.settings):
            raise TypeError(f"{type_.__name__} declares a property twice")

    def __getitem__(self, name: str) -> Declared:
        """Return the setting with this name."""
        return self._by_name[name]

    def load(
        self,
        properties: Iterable[Property] | Mapping[str, str],
        overrides: Iterable[Property] = (),
        wrong: Iterable[str] = (),
    ) -> tuple[C, list[str]]:
        """Make the configuration from properties; return it with warnings. `overrides` (from a command line)
        win over `properties`.

        Raises ConfigError with all errors, one on each line. `wrong` has errors that the caller found before;
        they come first. If a default does not fit the given properties, the configuration class may give
        another one (its function `moved_defaults`). Given properties that do not fit together are an error.
        """
        if isinstance(properties, Mapping):
            properties = [Property(key, value) for key, value in properties.items()]
        errors = list(wrong)
        given, warnings = self._known(properties, errors=errors)
        given |= self._known(overrides, lenient=False, foreign={}, errors=errors)[0]
        values = {}
        for item in given.values():
            try:
                values[item.key] = _parsed(self._by_name[item.key], item)
            except ConfigError as error:
                errors.append(str(error))
        # A value that could not be read has its default in `config`. Errors that follow from it are left out.
        told = {word for error in errors for word in _WORD.findall(error)} & self._by_name.keys()
        config, misfits = self._build(self.type(), values, given, moving=True)
        errors += [line for line in misfits if told.isdisjoint(_WORD.findall(line))]
        if errors:
            raise ConfigError("\n".join(errors))
        return config, warnings

    def change(self, config: C, properties: Iterable[Property]) -> tuple[C, dict[str, str]]:
        """Return `config` with these properties changed, and the texts of those that differ from before.
        Raises ConfigError if one of them is unknown, wrong or needs a restart, or if they do not fit
        together."""
        given, _ = self._known(properties, lenient=False, skip=False)
        values = {}
        for item in given.values():
            one = self._by_name[item.key]
            before = one.value(config)
            if item.value == one.shown(before):
                continue
            value = _parsed(one, item)
            if value == before:
                continue
            if not one.setting.hot:
                raise ConfigError(
                    f"{item.key} cannot change while this process runs: change it in the configuration file "
                    "and restart"
                )
            values[item.key] = value
        changed, misfits = self._build(config, values, given)
        if misfits:
            raise ConfigError("; ".join(misfits))
        return changed, {key: self._by_name[key].format(value) for key, value in values.items()}

    def format(self, config: C, *, important: bool = False) -> dict[str, str]:
        """Return all current properties, or only the important ones, as texts by name; secrets are hidden."""
        return {
            one.setting.name: one.shown(one.value(config))
            for one in self.settings
            if one.setting.important or not important
        }

    def _known(
        self,
        properties: Iterable[Property],
        *,
        lenient: bool | None = None,
        foreign: Mapping[str, str] | None = None,
        skip: bool = True,
        errors: list[str] | None = None,
    ) -> tuple[dict[str, Property], list[str]]:
        """Return the known properties by name, and warnings. With `skip`, names that are ignored on purpose
        are left out; without it they are refused. Errors are added to `errors`; if it is not given, the first
        error is raised."""
        if lenient is None:
            lenient = self._lenient
        without_effect = {**(self._foreign if foreign is None else foreign), **self.ignored}
        given: dict[str, Property] = {}
        seen: dict[str, str] = {}
        warnings: list[str] = []
        for item in properties:
            try:
                self._sort(item, given, seen, warnings, without_effect, lenient=lenient, skip=skip)
            except ConfigError as error:
                if errors is None:
                    raise
                errors.append(str(error))
        return given, warnings

    def _sort(
        self,
        item: Property,
        given: dict[str, Property],
        seen: dict[str, str],
        warnings: list[str],
        without_effect: Mapping[str, str],
        *,
        lenient: bool,
        skip: bool,
    ) -> None:
        """Put one property into `given`, or a text about it into `warnings`. Raises ConfigError if the
        property is refused."""
        place = f"{item.where}: " if item.where else ""
        if item.key in seen:
            before = f" at {seen[item.key]}" if seen[item.key] else ""
            raise ConfigError(f"{place}the key {item.key!r} is already set{before}")
        seen[item.key] = item.where
        if item.key in self._by_name:
            given[item.key] = item
        elif item.key in self._protective:
            harmless, why = self._protective[item.key]
            if not skip or item.value.strip().lower() not in harmless:
                raise ConfigError(f"{place}{item.key}={item.value} has no effect here: {why}")
        elif item.key in without_effect:
            text = f"{item.key} has no effect here: {without_effect[item.key]}"
            if not skip:
                raise ConfigError(text)
            warnings.append(place + text)
        else:
            hint = self._hint(item.key, NEAR_UNKNOWN if lenient else NEAR_HINT)
            if hint or not lenient:
                raise ConfigError(f"{place}unknown key {item.key!r}{hint}")
            warnings.append(f"{place}unknown key {item.key!r} is ignored")

    def _hint(self, key: str, cutoff: float) -> str:
        known = [*self._by_name, *self.ignored, *self._protective]
        lowered = {name.lower(): name for name in known}
        near = difflib.get_close_matches(key.lower()[:100], lowered, 1, cutoff)
        return f" (did you mean {lowered[near[0]]!r}?)" if near else ""

    def _build(
        self, base: C, values: Mapping[str, Any], given: Mapping[str, Property], *, moving: bool = False
    ) -> tuple[C, list[str]]:
        """Make the configuration. Return it with one line for each set of values that do not fit together."""
        by_path = {self._by_name[name].path: value for name, value in values.items()}
        misfits: list[str] = []
        config: C = _replaced(base, by_path, misfits, moving=moving)
        check: Callable[[Collection[str]], None] | None = getattr(config, "check", None)
        if check is not None:
            try:
                check(given)
            except ValueError as error:
                misfits += str(error).splitlines()
        return config, list(dict.fromkeys(_located(line, given) for line in misfits))


def _declared(type_: type, path: tuple[str, ...]) -> Iterator[Declared]:
    hints = typing.get_type_hints(type_, include_extras=True)
    for item in fields(type_):
        hint, here = hints[item.name], (*path, item.name)
        if typing.get_origin(hint) is Annotated:
            kind, *extra = typing.get_args(hint)
            for setting in extra:
                if isinstance(setting, Setting):
                    yield _checked(setting, here, kind)
        elif is_dataclass(hint) and isinstance(hint, type):
            yield from _declared(hint, here)


def _checked(setting: Setting, path: tuple[str, ...], kind: Any) -> Declared:
    optional = isinstance(kind, types.UnionType)
    if optional:
        (kind,) = [option for option in typing.get_args(kind) if option is not types.NoneType]
    if kind not in (bool, str, int, float) and (setting.parse is None or setting.format is None):
        raise TypeError(f"{setting.name}: a field of type {kind} needs parse and format")
    return Declared(setting, path, kind, optional)


def _parsed(one: Declared, item: Property) -> Any:
    try:
        return one.parse(item.value)
    except ValueError as error:
        reason = str(error)
        if not reason.startswith(item.key):
            reason = f"{item.key}: {reason}"
        raise ConfigError(f"{item.where}: {reason}" if item.where else reason) from error


def _replaced(config: Any, values: Mapping[tuple[str, ...], Any], misfits: list[str], *, moving: bool) -> Any:
    """Copy a dataclass with the values at these paths, including groups of settings. Values that do not fit
    are left out, and the errors are added to `misfits`. With `moving`, fields without a value are defaults,
    and may be replaced."""
    groups: dict[str, dict[tuple[str, ...], Any]] = {}
    changes: dict[str, Any] = {}
    for (name, *rest), value in values.items():
        if rest:
            groups.setdefault(name, {})[tuple(rest)] = value
        else:
            changes[name] = value
    for name, inner in groups.items():
        changes[name] = _replaced(getattr(config, name), inner, misfits, moving=moving)
    if moving and (move := getattr(config, "moved_defaults", None)) is not None:
        changes = {**move(changes), **changes}
    try:
        return replace(config, **changes)
    except ValueError as error:
        misfits += str(error).splitlines()
        return config


def _located(message: str, given: Mapping[str, Property]) -> str:
    """Return a check's message. The place of the first property in it that was given is put before the
    message."""
    for word in _WORD.findall(message):
        if word in given:
            return f"{given[word].where}: {message}" if given[word].where else message
    return message


# --- texts of values ----------------------------------------------------------------------------------


def whole_number(text: str, low: float = -math.inf, high: float = math.inf) -> int:
    """Parse a whole number from `low` to `high`. Raises ValueError for anything else."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r}: expected a whole number")
    number = int(text)
    if not low <= number <= high:
        if high == math.inf:
            raise ValueError(f"{number}: expected {low} or more")
        raise ValueError(f"{number}: expected {low} to {high}")
    return number


def name(text: str) -> str:
    """Parse the name of a group, a node or a broker. A comment behind the name is refused, because with it
    the name would be another one, and the program would begin with an empty store."""
    if not text:
        raise ValueError("empty")
    if "#" in text or any(character.isspace() for character in text):
        raise ValueError(f"{text!r}: a name may not have blanks or '#'{COMMENT}")
    if not text.isprintable():
        raise ValueError(f"{text!r}: a name may not have control characters")
    return text


def directory(text: str) -> str:
    """Parse a path, which may contain blanks. A comment behind the path is refused, because with it the path
    would be another one."""
    if not text:
        raise ValueError("empty")
    if " #" in text or "\t#" in text:
        raise ValueError(f"{text!r}: ' #' in a path{COMMENT}")
    return text


def parts(text: str) -> list[str]:
    """Split a text at each `;`. Blanks around the parts, and empty parts, are removed."""
    return [part for part in (piece.strip() for piece in text.split(";")) if part]


def names(text: str) -> tuple[str, ...]:
    """Parse names, separated by `;`."""
    return tuple(map(name, parts(text)))
