"""Scripts for the pure cores: a text file of commands and what each of them printed.

    # English comments say what happens and why.
    group 3
    ----
    n0 FOLLOWER term 0 ...

    elect n0
    ----
    ...

A command is one line; `----` and its output follow, up to a blank line. `pytest tests/scripts --rewrite`
writes what the commands print now into the files: read the difference before you commit it.

Members are n0, n1, ...; messages wait in a bag until they are delivered. Time stands still but for `wait`,
`tick` and `elect`. The draw of each member is fixed (n0 the shortest time-outs, n4 the longest).

| command | what happens |
|---|---|
| `group VOTERS [learners=N] [push=BYTES] [window=BYTES]` | members, not yet started |
| `given NODE [term=N] [vote=NODE] [log=T,T,...] [untrusted]` | what its disk holds: terms of its entries |
| `start [NODE ...]` | start or restart members (default: all that are down) |
| `crash NODE`, `power NODE` | kill; power cut: what is not fsynced is lost too |
| `run MS` | time passes: timers fire when they are due, messages arrive at once |
| `wait MS` | time passes, nobody notices |
| `tick NODE [MS]` | time passes to the member's deadline (or by MS), then its timer runs |
| `elect NODE` | its election time-out passes; everything is delivered until nothing moves |
| `deliver [FROM>TO] [TYPE] [COUNT]` | messages arrive, in order; without COUNT until nothing moves |
| `drop [FROM>TO] [TYPE]` | messages of the bag are lost |
| `copy [FROM>TO] [TYPE]` | messages of the bag arrive, and stay in the bag |
| `cut A>B ...`, `cut A` | lose messages from A to B; all from and to A |
| `break A>B ...`, `break A` | the same, and the connection is known to be gone |
| `heal` | no message is lost any more, connections come back |
| `propose NODE TEXT ...` | the leader appends entries |
| `voters NODE NODE,NODE,...` | the leader appends a configuration |
| `transfer NODE TARGET` | the leader tells the target to stand |
| `refused NODE PEER` | a member learns that nobody listens at the peer's address |
| `disk NODE manual` / `auto` | whether its fsyncs wait for `sync` |
| `sync NODE` | its fsyncs end |
| `stand NODE no` / `yes` | whether it would be a good leader (`Elector.may_stand`) |
| `retire NODE INDEX` | its log begins at INDEX |
| `bag`, `log [NODE]`, `status [NODE]` | look |
| `quiet COMMAND` | the same, without the lines about messages |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dledger.chaos.cores import CoreGroup, CoreNode, Entry, Envelope, describe
from dledger.formats.store_files import HardState

SEPARATOR = "----"
MAX_DELIVERIES = 2000


class ScriptError(Exception):
    """A line that is no command."""


@dataclass
class Step:
    """One command: the lines before it, itself, and what it is expected to print."""

    comments: list[str]
    command: str
    line: int
    output: list[str]


def parse(text: str) -> tuple[list[Step], list[str]]:
    """The steps of a script and the comments behind the last one."""
    steps: list[Step] = []
    comments: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip() or line.startswith("#"):
            comments.append(line)
            continue
        step = Step(comments, line, at, [])
        comments = []
        if at >= len(lines) or lines[at] != SEPARATOR:
            step.output = []
        else:
            at += 1
            while at < len(lines) and lines[at].strip():
                step.output.append(lines[at])
                at += 1
        steps.append(step)
    return steps, comments


def render(steps: list[Step], tail: list[str]) -> str:
    """The script as text."""
    lines: list[str] = []
    for step in steps:
        if lines and (not step.comments or step.comments[0]):
            lines.append("")  # ends the output before
        lines += [*step.comments, step.command, SEPARATOR, *step.output]
    if tail and tail[0]:
        lines.append("")
    return "\n".join([*lines, *tail]).rstrip() + "\n"


def run_file(path: Path, rewrite: bool) -> list[str]:
    """Run a script; the differences, or none after a rewrite."""
    steps, tail = parse(path.read_text())
    script = Script()
    differences = []
    for step in steps:
        output = script.run(step.command)
        if output != step.output:
            differences.append(
                f"{path.name}:{step.line}: {step.command}\n"
                + "\n".join([*(f"  - {line}" for line in step.output), *(f"  + {line}" for line in output)])
            )
        step.output = output
    if rewrite:
        path.write_text(render(steps, tail))
        return []
    return differences


class Script:
    """Runs commands; `run` gives what one printed."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._group: CoreGroup | None = None
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "group": self._make_group,
            "given": self._given,
            "start": self._start,
            "crash": lambda words: self._stop(words, power=False),
            "power": lambda words: self._stop(words, power=True),
            "run": self._run_for,
            "wait": self._wait,
            "tick": self._tick,
            "elect": self._elect,
            "deliver": self._deliver,
            "drop": self._drop,
            "copy": self._copy,
            "cut": lambda words: self._cut(words, noticed=False),
            "break": lambda words: self._cut(words, noticed=True),
            "heal": self._heal,
            "propose": lambda words: self.group.propose(words[0], words[1:]),
            "voters": lambda words: self.group.reconfigure(words[0], words[1].split(",")),
            "transfer": lambda words: self.group.hand_over(words[0], words[1]),
            "refused": lambda words: self.group.refused(words[0], words[1]),
            "disk": self._disk,
            "sync": lambda words: self.group.synced(words[0]),
            "stand": self._stand,
            "retire": lambda words: self._node(words[0]).log.retire(int(words[1])),
            "bag": lambda words: self._said.extend(map(str, self.group.bag)),
            "log": self._log,
            "status": self._status,
        }

    @property
    def group(self) -> CoreGroup:
        """The members of this script."""
        if self._group is None:
            raise ScriptError("a script begins with `group`")
        return self._group

    def run(self, command: str) -> list[str]:
        """Run one command; the lines that it printed."""
        word, *words = command.split()
        if word == "quiet":
            lines = self.run(" ".join(words))
            return [line for line in lines if " -> " not in line and " <- " not in line] or ["ok"]
        if word not in self._commands:
            raise ScriptError(f"no command {word!r}")
        self._said.clear()
        self._commands[word](words)
        if self._group is not None:
            self._group.check()
        return list(self._said) or ["ok"]

    # Members

    def _make_group(self, words: list[str]) -> None:
        options = dict(word.split("=") for word in words[1:])
        count, learners = int(words[0]), int(options.get("learners", 0))
        names = [f"n{number}" for number in range(count + learners)]
        self._group = CoreGroup(
            names[:count],
            names[count:],
            push_bytes=int(options.get("push", 300)),
            window_bytes=int(options.get("window", 600)),
            say=self._said.append,
        )

    def _node(self, name: str) -> CoreNode:
        if name not in self.group.nodes:
            raise ScriptError(f"no member {name!r}")
        return self.group.nodes[name]

    def _given(self, words: list[str]) -> None:
        node = self._node(words[0])
        node.may_vote = "untrusted" not in words
        options = dict(word.split("=") for word in words[1:] if "=" in word)
        if "log" in options:
            terms = [int(term) for term in options["log"].split(",")]
            node.log.append([Entry(term, f"{term}@{index}") for index, term in enumerate(terms)])
            node.log.durable_index = node.log.last_index
        node.hard_state = HardState(int(options.get("term", node.log.last_term)), options.get("vote"))

    def _start(self, words: list[str]) -> None:
        for name in words or [name for name in self.group.names if self._node(name).elector is None]:
            self.group.start(name)
            self._status([name])

    def _stop(self, words: list[str], *, power: bool) -> None:
        for name in words:
            self.group.stop(name, power=power)

    def _disk(self, words: list[str]) -> None:
        self._node(words[0]).manual_disk = words[1] == "manual"

    def _stand(self, words: list[str]) -> None:
        self._node(words[0]).core.may_stand = words[1] == "yes"

    # Time

    def _wait(self, words: list[str]) -> None:
        self.group.now += int(words[0]) / 1000

    def _run_for(self, words: list[str]) -> None:
        group = self.group
        end = group.now + int(words[0]) / 1000
        while group.running():
            first = min(group.running(), key=lambda node: node.core.deadline)
            if first.core.deadline > end:
                break
            group.now = max(group.now, first.core.deadline)
            group.tick(first.name)
            self._deliver([])
        group.now = end

    def _tick(self, words: list[str]) -> None:
        group = self.group
        if len(words) > 1:
            group.now += int(words[1]) / 1000
        else:
            group.now = max(group.now, self._node(words[0]).core.deadline)
        group.tick(words[0])

    def _elect(self, words: list[str]) -> None:
        self._tick(words[:1])
        self._deliver([])

    # Messages

    def _chosen(self, words: list[str]) -> list[Envelope]:
        """Those of the bag that a selection like `n0>n1 Append` names."""
        chosen = list(self.group.bag)
        for word in words:
            if ">" in word:
                source, target = word.split(">")
                chosen = [
                    envelope
                    for envelope in chosen
                    if source in ("", envelope.source) and target in ("", envelope.target)
                ]
            else:
                chosen = [envelope for envelope in chosen if type(envelope.message).__name__ == word]
        return chosen

    def _deliver(self, words: list[str]) -> None:
        limit = int(words[-1]) if words and words[-1].isdigit() else MAX_DELIVERIES
        selection = [word for word in words if not word.isdigit()]
        for _ in range(limit):
            chosen = self._chosen(selection)
            if not chosen:
                return
            self._arrive(chosen[0])
        if limit == MAX_DELIVERIES:
            raise ScriptError("messages without end")

    def _arrive(self, envelope: Envelope) -> None:
        lost = "  (lost)" * ((envelope.source, envelope.target) in self.group.cuts)
        self._said.append(f"{envelope.target} <- {envelope.source}  {describe(envelope.message)}{lost}")
        self.group.deliver(envelope)

    def _drop(self, words: list[str]) -> None:
        for envelope in self._chosen(words):
            self.group.bag.remove(envelope)
            self._said.append(f"lost: {envelope}")

    def _copy(self, words: list[str]) -> None:
        for envelope in self._chosen(words):
            self._arrive(envelope)
            self.group.bag.append(envelope)

    def _ways(self, words: list[str]) -> list[tuple[str, str]]:
        ways = []
        for word in words:
            source, arrow, target = word.partition(">")
            if arrow:
                ways.append((source, target))
            else:
                others = [name for name in self.group.names if name != source]
                ways += [(source, other) for other in others] + [(other, source) for other in others]
        return ways

    def _cut(self, words: list[str], *, noticed: bool) -> None:
        for source, target in self._ways(words):
            self.group.cut(source, target, noticed=noticed)

    def _heal(self, words: list[str]) -> None:
        for source, target in sorted(self.group.cuts):
            self.group.heal(source, target)

    # Looking

    def _log(self, words: list[str]) -> None:
        for name in words or self.group.names:
            self._said.append(f"{name}: {self._node(name).log}")

    def _status(self, words: list[str]) -> None:
        for name in words or self.group.names:
            node = self._node(name)
            if node.elector is None:
                self._said.append(f"{name} is down: term {node.hard_state.term} on disk")
                continue
            core = node.elector
            self._said.append(
                f"{name} {core.role.value} term {core.term} vote {core.vote or '-'} "
                f"leader {core.leader_id or '-'} last {node.log.last_index}/t{node.log.last_term} "
                f"durable {node.log.durable_index} commit {node.commit_index}"
            )
            if node.leader is not None:
                for peer, progress in node.leader.progress.items():
                    self._said.append(
                        f"  {peer} {progress.state.value} next {progress.next} stored {progress.stored} "
                        f"durable {progress.durable} in flight {progress.inflight_bytes}"
                    )
