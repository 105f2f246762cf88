"""Writes configuration files that people may also edit: edits are kept. Blocking."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dledger.runtime.properties_file import edit_properties, parse_properties
from dledger.runtime.settings import ConfigError

RECORD = ".written.json"
"""Name of a file beside the configuration files. It records what was written into each of them, so that
edits are recognised."""


def properties_text(properties: Mapping[str, str]) -> str:
    """Return properties as `key=value` lines."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def write_conf(path: Path, wanted: Mapping[str, str]) -> str:
    """Write the wanted properties to the file, and keep edits that a user made since it was last written.

    If the file was edited, returns a note for people about what was kept and what was changed; otherwise
    an empty text. A property that was not wanted when the file was last written, and is wanted now,
    replaces a user's edit of it.
    """
    written = _record(path).get(path.name)
    text = path.read_text(encoding="utf-8") if path.exists() else None
    note = ""
    if text is not None and text != properties_text(wanted if written is None else written):
        text, note = _merged(path, text, written or {}, wanted)
    else:
        text = properties_text(wanted)
    path.write_text(text, encoding="utf-8")
    record = {**_record(path), path.name: dict(wanted)}
    (path.parent / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return note


def _merged(path: Path, text: str, written: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, str]:
    shown = f"{path.parent.name}/{path.name}"
    try:
        there = {item.key: item.value for item in parse_properties(text, shown)}
        # Without a record (an older program wrote none), the present content counts.
        before = written or there
        new = {key: value for key, value in wanted.items() if before.get(key) != value}
        changes = {
            key: new[key] for key in new if there.get(key) != new[key] and (written or key not in there)
        }
        gone = [key for key in written if key not in wanted and there.get(key) == written[key]]
        lines = text.splitlines(keepends=True)
        left = "".join(line for line in lines if line.partition("=")[0].strip() not in gone)
        merged = edit_properties(left, changes, shown)
    except ConfigError as error:
        return text, f"{shown} was edited, and stays as it is: {error}"
    after = there | changes
    edited = [key for key in {**wanted, **after} if after.get(key) != wanted.get(key) and key not in gone]
    said = f"{shown} was edited"
    if edited:
        said += f": kept {', '.join(_shown(key, after.get(key)) for key in edited)}"
    if changes:
        said += f"; changed to {', '.join(f'{key}={value}' for key, value in changes.items())}"
    return merged, said if edited or changes else ""


def _shown(key: str, value: str | None) -> str:
    return f"{key} (removed)" if value is None else f"{key}={value}"


def _record(path: Path) -> dict[str, dict[str, str]]:
    try:
        found = json.loads((path.parent / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
