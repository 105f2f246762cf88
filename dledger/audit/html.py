"""Building blocks of report pages: one self-contained file, no script, no external resource.

It is light or dark as the reader's system is set, and readable in print and without colours. All functions
that take `str` escape it; `Markup` is text that is HTML already. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dledger.audit.findings import VERDICTS, Severity


class Markup(str):
    """HTML text, which is not escaped again."""

    __slots__ = ()


Cell = str | int | float | None

ICONS = {
    Severity.INFO: "✔",
    Severity.WARNING: "▲",
    Severity.ERROR: "✖",
    Severity.CRITICAL: "✖✖",
    Severity.UNKNOWN: "?",
}

STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --ink: #1a1f26; --soft: #5b6673; --line: #d6dce3; --card: #f5f7f9;
  --info: #1c7c4f; --warning: #8f5b00; --error: #b3261e; --critical: #8e0f3c; --unknown: #5a4b9a;
  --read: #3aa274; --corrupt: #d3241b; --divergent: #9a2fc4; --missing: #1a1f26; --unread: #e38a00;
  --uncommitted: #8fb7e8; --lagging: #c9d1da; --retired: #eef1f4; --gap: #ffffff; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161b; --ink: #e6eaef; --soft: #9aa6b2; --line: #313a44; --card: #1b2128;
  --info: #5fd39b; --warning: #f2b84b; --error: #ff8a80; --critical: #ff7aa8; --unknown: #b9abff;
  --read: #2f8f65; --corrupt: #ff5a4f; --divergent: #d583f5; --missing: #f4f6f8; --unread: #ffb13d;
  --uncommitted: #3f6ea5; --lagging: #46515d; --retired: #222a32; --gap: #12161b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1.5rem 3rem; max-width: 82rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.15rem; margin: 0 0 .8rem; font-weight: 600; color: var(--soft); }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .3rem 0; max-width: 60rem; }
ol, ul { margin: .3rem 0; padding-left: 1.4rem; max-width: 60rem; }
.banner { border: 1px solid var(--line); border-left: .6rem solid var(--level); border-radius: .4rem;
  background: var(--card); padding: .9rem 1.2rem; }
.banner strong { font-size: 1.9rem; line-height: 1.2; color: var(--level); }
.banner p { font-size: 1.05rem; }
.facts { color: var(--soft); }
.info { --level: var(--info); } .warning { --level: var(--warning); } .error { --level: var(--error); }
.critical { --level: var(--critical); } .unknown { --level: var(--unknown); }
.pill { color: var(--level); font-weight: 600; white-space: nowrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th { text-align: left; color: var(--soft); font-weight: 600; white-space: nowrap; }
th, td { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: .88em/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
.note { color: var(--soft); }
svg.bars { width: 100%; display: block; fill: var(--read); border-bottom: 1px solid var(--line); }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .88rem; border-top: 1px solid var(--line);
  padding-top: .6rem; }
@media print { * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } }
"""


def text(value: object) -> Markup:
    """Return a value as escaped text. Markup stays as it is."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def join(parts: Iterable[object], separator: str = "") -> Markup:
    """Join parts one after another. Each part is escaped unless it is Markup."""
    return Markup(separator.join(text(part) for part in parts))


def number(value: float) -> str:
    """A number as text: 12,345 or 12,345.6."""
    return f"{value:,d}" if isinstance(value, int) else f"{value:,.1f}"


def size_text(count: float) -> str:
    """Text for a number of bytes, with a binary unit such as MiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def level(severity: Severity) -> str:
    """Name of the CSS class that colours a severity."""
    return severity.name.lower()


def pill(severity: Severity) -> Markup:
    """HTML that shows a severity in its colour, with an icon, so that it can be recognized without
    colours."""
    return Markup(f'<span class="pill {level(severity)}">{ICONS[severity]} {severity.name.lower()}</span>')


def banner(severity: Severity, sentence: object, facts: Sequence[object], word: str = "") -> Markup:
    """Make the beginning of the page: the verdict (or another word), one sentence, a line of facts."""
    word = text(word or VERDICTS[severity].upper())
    line = join(facts, " · ")
    return Markup(
        f'<div class="banner {level(severity)}"><strong>{ICONS[severity]} {word}</strong>'
        f'<p>{text(sentence)}</p><p class="facts">{line}</p></div>'
    )


def section(heading: str, content: object, note: str = "") -> Markup:
    """Make a part of the page under a heading."""
    said = f'<p class="note">{text(note)}</p>' if note else ""
    return Markup(f"<section><h2>{text(heading)}</h2>{said}{text(content)}</section>")


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Markup:
    """Make a table with numbers aligned to the right and a dash for None. If the page is too narrow, only the
    table scrolls."""
    body: list[str] = []
    numeric = [False] * len(headings)
    for row in rows:
        cells = []
        for column, value in enumerate(row):
            if isinstance(value, int | float):
                numeric[column] = True
                cells.append(f'<td class="n">{number(value)}</td>')
            else:
                cells.append(f"<td>{text('–' if value is None else value)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>\n")
    heads = [
        f"<th{' class=n' if right else ''}>{text(name)}</th>"
        for name, right in zip(headings, numeric, strict=True)
    ]
    return Markup(
        f'<div class="wide"><table><thead><tr>{"".join(heads)}</tr></thead>\n'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def bars(values: Sequence[float], labels: Sequence[str], *, height_px: int = 70) -> Markup:
    """Draw a bar for each value, with zero at the bottom. The label is shown when the pointer rests on the
    bar."""
    top = max(values, default=0) or 1
    wide = 1000 / max(len(values), 1)
    drawn = [
        Markup(
            f'<rect x="{number * wide:.2f}" y="{100 - 100 * value / top:.2f}" width="{wide * 0.9:.2f}" '
            f'height="{100 * value / top:.2f}"><title>{text(label)}</title></rect>'
        )
        for number, (value, label) in enumerate(zip(values, labels, strict=True))
        if value
    ]
    return Markup(
        f'<svg class="bars" viewBox="0 0 1000 100" preserveAspectRatio="none" style="height:{height_px}px">'
        f"{join(drawn)}</svg>"
    )


def page(title: str, parts: Iterable[object], *, style: str = "", footer: object = "") -> str:
    """Make the whole page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}{style}</style></head>\n<body>\n"
        f"<h1>{text(title)}</h1>\n{join(parts, chr(10))}\n<footer>{text(footer)}</footer>\n</body></html>\n"
    )
