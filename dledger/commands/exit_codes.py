"""The exit codes of all commands: one table, the only place that defines the meaning of a number.

The end of every `--help` and the page docs/reference/exit-codes.md are made from it. A command names its row
of the table in its declaration (`dledger.commands.declaring`). Nothing heavy is imported here, because every
`--help` needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

DONE = 0
FAILED = 1
USAGE = 2
NOT_SEEN = 4
STORE_BAD, BUG_CAUGHT, SETTINGS_UNFIT = 70, 71, 78
INTERRUPTED = 128 + 2
"""Exit code of a command that Ctrl-C ended (128 + SIGINT's number 2), as shells report it."""
TERMINATED = 128 + 15
"""Exit code of a command that SIGTERM (128 + its number 15) ended before it could stop in an orderly way."""


@dataclass(frozen=True)
class ExitCode:
    """One exit code: a number, its short name and its meaning."""

    number: int
    name: str
    """One or two words; all commands use the same words for the same meaning."""
    meaning: str


@dataclass(frozen=True)
class ExitCodes:
    """The exit codes that a group of commands shares."""

    title: str
    """The common subject of these commands; it is a heading of the page."""
    codes: tuple[ExitCode, ...]
    usage: int = USAGE
    """The exit code after a wrong command line."""
    cannot_run: int = USAGE
    """The exit code of a command that lacks a package, or cannot write its standard output."""

    def rows(self) -> list[tuple[str, str]]:
        """Return (number, meaning) of each exit code, for the end of `--help`."""
        return [(str(one.number), one.meaning) for one in (*self.codes, _INTERRUPTED)]


_DONE = ExitCode(DONE, "done", "done")
_USAGE = ExitCode(USAGE, "usage", "wrong usage")
_INTERRUPTED = ExitCode(INTERRUPTED, "interrupted", "ended by Ctrl-C")


def _actions(title: str, failed: str, done: str = "done") -> ExitCodes:
    """Return the exit codes of commands that do one thing: it is done, it failed, or the command line was
    wrong."""
    return ExitCodes(title, (ExitCode(DONE, "done", done), ExitCode(FAILED, "failed", failed), _USAGE))


TEXTS = ExitCodes("Commands that print a text", (_DONE, _USAGE))
LOCAL_GROUP = ExitCodes(
    "A group on this machine",
    (
        ExitCode(DONE, "done", "done; status: all is well"),
        ExitCode(FAILED, "warnings", "status: warnings, such as a node that is down while another leads"),
        ExitCode(USAGE, "errors", "failed, or wrong usage; status: errors, such as no leader"),
        ExitCode(NOT_SEEN, "not seen", "there is no group, or nothing answers"),
    ),
)
SERVER = ExitCodes(
    "Servers",
    (
        ExitCode(DONE, "done", "stopped cleanly"),
        ExitCode(FAILED, "failed", "could not start (such as a port or a store in use), or was interrupted"),
        ExitCode(USAGE, "usage", "wrong arguments or configuration"),
        ExitCode(STORE_BAD, "bad store", "the store needs repair or replacement: do not start it again"),
        ExitCode(BUG_CAUGHT, "bug", "a bug was caught: report it"),
        ExitCode(SETTINGS_UNFIT, "unfit settings", "the settings or the store do not fit the group"),
        ExitCode(TERMINATED, "terminated", "SIGTERM came before the store was open"),
    ),
)
LOG = _actions("The replicated log", "refused or not answered; the reason is on standard error")
COPY = _actions("Copies and lists of a store", "failed; the reason is printed")
RECOVER = _actions(
    "Recovery by force",
    "refused, or without --yes: it only said what would be lost",
    done="done, with --yes",
)
MOVING = ExitCodes(
    "Import and export",
    (
        _DONE,
        ExitCode(FAILED, "failed", "not done, or interrupted: run the same command again to continue"),
        _USAGE,
        ExitCode(3, "findings", "done, but the audit of what was written found something"),
    ),
)
MIRROR = ExitCodes(
    "Mirror",
    (
        ExitCode(DONE, "done", "done; with --check: nothing is left in the old cluster"),
        ExitCode(
            FAILED,
            "failed",
            "failed: run the same command again to continue; with --check: something is left in the "
            "old cluster",
        ),
        _USAGE,
        ExitCode(TERMINATED, "terminated", "ended cleanly by SIGTERM"),
    ),
)
ADMIN = _actions(
    "Administration",
    "failed, even if only at one broker of several, or not confirmed; the reason is on standard error",
)
MESSAGES = ExitCodes(
    "Messages from and to files",
    (
        ExitCode(DONE, "done", "all messages are acknowledged, or were printed"),
        ExitCode(FAILED, "failed", "failed: the reason, and the line of the input, are on standard error"),
        _USAGE,
        ExitCode(TERMINATED, "terminated", "ended by SIGTERM; produce ends cleanly"),
    ),
)
MQADMIN = ExitCodes(
    "RocketMQ's mqadmin",
    (_DONE, ExitCode(FAILED, "failed", "failed, even if only at one broker of several, or wrong options")),
    usage=FAILED,
)
LAKE = _actions("Tables of topics", "failed: the reason is on standard error; run it again to continue")
AUDIT = ExitCodes(
    "Audits and judging jobs",
    (
        ExitCode(0, "clean", "clean: information only"),
        ExitCode(1, "warnings", "warnings"),
        ExitCode(2, "errors", "errors"),
        ExitCode(3, "critical", "committed data differ, or too few good copies are left"),
        ExitCode(NOT_SEEN, "unknown", "something could not be checked, or the command could not run"),
    ),
    usage=NOT_SEEN,
    cannot_run=NOT_SEEN,
)


def _job(title: str, *codes: ExitCode) -> ExitCodes:
    failed = ExitCode(NOT_SEEN, "not run", "could not run, or did not finish")
    return ExitCodes(title, (*codes, failed), NOT_SEEN, NOT_SEEN)


JOB = _job("Jobs on Spark", _DONE)
ARCHIVE = _job(
    "The archive job",
    ExitCode(0, "done", "archived"),
    ExitCode(1, "deleted", "archived, but retention had already deleted some messages"),
)
LAG = _job("The lag job", _DONE, ExitCode(1, "behind", "a queue is more than --warn-above behind"))
DOCTOR = _job(
    "The doctor of Spark",
    ExitCode(0, "clean", "all is well"),
    ExitCode(1, "warnings", "warnings: it works, but not well"),
    ExitCode(2, "errors", "errors: jobs will fail"),
)
SIMULATION = ExitCodes(
    "The simulator",
    (
        _DONE,
        ExitCode(
            FAILED,
            "violated",
            "a violation, a seed that did less than required, or a mark or fault that no seed reached",
        ),
        ExitCode(USAGE, "usage", "wrong usage, or the results to resume come from other code"),
    ),
)
MUTANTS = ExitCodes(
    "Mutants",
    (
        ExitCode(DONE, "done", "every mutant was caught"),
        ExitCode(FAILED, "survived", "a mutant survived, or a patch does not fit"),
        ExitCode(USAGE, "usage", "wrong usage, no checkout, or the unchanged tree fails"),
    ),
)
FAILOVERS = _actions(
    "Failovers and replacements", "it failed, something was lost, or (with --check) it was outside the budget"
)
TRIALS = _actions(
    "Trials of real processes",
    "a rule was broken, the group did not start, or --yes is missing: it only said what it would do",
    done="every rule holds",
)
REPLAY = ExitCodes(
    "Replays of a flight recording",
    (
        ExitCode(DONE, "done", "every step gave the recorded digest, and no invariant is broken"),
        ExitCode(FAILED, "differs", "a step differs from the recording, or an invariant is broken"),
        ExitCode(USAGE, "unusable", "wrong usage, no recording, or one of another version of the core"),
    ),
)
BENCH = _actions("Measurements", "errors, or a limit was exceeded")

TABLE = (
    LOCAL_GROUP,
    SERVER,
    ADMIN,
    MESSAGES,
    MQADMIN,
    TEXTS,
    LOG,
    COPY,
    RECOVER,
    MOVING,
    MIRROR,
    LAKE,
    AUDIT,
    JOB,
    ARCHIVE,
    LAG,
    DOCTOR,
    SIMULATION,
    MUTANTS,
    FAILOVERS,
    TRIALS,
    REPLAY,
    BENCH,
)
"""All groups of exit codes, in the order of the page."""
