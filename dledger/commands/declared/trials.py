"""`dledger chaos`: runs simulated groups under faults, tests of deliberately wrong code, failovers, and
replacements of members."""

from __future__ import annotations

import click

from dledger.chaos.mutants.suites import FAST, SIM, SUITES
from dledger.chaos.scenarios.profiles import MARKS_FROM_SEEDS, MET_IN_SEEDS, PROFILES
from dledger.commands import exit_codes
from dledger.commands.declaring import POSITIVE, Declared, Group, argument, flag, json_option, option

_LAST_LINE = "The last line is one JSON object."
POSITIVE_SECONDS = click.FloatRange(min=0, min_open=True)


def _wrong_simulation(given: object) -> str:
    """Return a text that says which of the given options of `sim` must not be used together; empty if all
    may."""
    has = vars(given)
    if has["trace"] and any(has[name] for name in ("json", "check_determinism", "resume", "list")):
        return "--trace prints only event lines: use it with seeds or --replay, and without other options"
    own = ("trace", "replay", "resume", "profile", "check_determinism")
    if has["pinned"] and any(has[name] for name in own):
        return "--pinned has its own seeds and profiles: use it only with --jobs, --json or --first"
    return ""


def _wrong_trial(given: object) -> str:
    """Return a text that says which of the given options of `run` must not be used together; empty if all
    may."""
    has = vars(given)
    if has["namesrv"]:
        return "--dir is for a group that the trial starts itself: leave it out" if has["dir"] else ""
    names = ("broker_name", "exec", "exec_undo", "yes")
    given_names = [f"--{name.replace('_', '-')}" for name in names if has[name]]
    return f"{', '.join(given_names)}: only together with --namesrv" if given_names else ""


SIMULATION = Declared(
    "sim",
    "dledger.chaos.scenarios.command:run",
    [
        option("--seeds", type=POSITIVE, default=20, show_default=True, metavar="N", help="Number of seeds."),
        option("--start", type=int, default=0, show_default=True, metavar="S", help="The first seed."),
        flag("--pinned", help="Play the fixed seeds that are played before each merge."),
        option(
            "--profile",
            type=click.Choice(sorted(PROFILES)),
            metavar="NAME",
            help="Profile (mix of faults) for all seeds; --list shows them.",
        ),
        option("--jobs", type=POSITIVE, default=1, show_default=True, metavar="J", help="Processes."),
        option("--minutes", type=float, metavar="M", help="Begin no seed after this time."),
        flag("--trace", help="Print only the event lines."),
        json_option(_LAST_LINE),
        option(
            "--resume", metavar="FILE", help="File with results (JSON lines); continue after its last line."
        ),
        flag("--resume-any", help="With --resume: also count results of other versions of the code."),
        option(
            "--picture",
            metavar="FILE",
            help="Play one seed (--start), and write an HTML page with its elections.",
        ),
        option("--replay", metavar="FILE", help="Play the plan in this file instead of seeds."),
        option(
            "--replays",
            metavar="DIR",
            default="run/simulation",
            show_default=True,
            help="Directory for failing plans.",
        ),
        flag("--first", help="End at the first violation."),
        flag("--no-shrink", help="Do not shrink failing plans."),
        flag("--check-determinism", help="Run each seed twice and compare."),
        flag("--list", help="Print the profiles and end."),
    ],
    codes=exit_codes.SIMULATION,
    summary="simulated groups under faults, from seeds",
    epilog=f"A mark or fault that no seed reached counts from {MARKS_FROM_SEEDS} seeds on, {MET_IN_SEEDS} of "
    "them of profiles that list it (rare marks: more, dledger/chaos/scenarios/profiles.py); the report names "
    "what did not count.",
    extra="server",
    wrong=_wrong_simulation,
)
MUTANTS = Declared(
    "mutants",
    "dledger.chaos.mutants.command:run",
    [
        flag("--list", help="Print the mutants and the rules that they break; run nothing."),
        option("--only", metavar="NAME", multiple=True, help="Run this mutant; may be given several times."),
        option(
            "--suite",
            type=click.Choice([FAST, SIM, *(suite.name for suite in SUITES)]),
            metavar="NAME",
            help=f"Only suites of this kind ({FAST}, {SIM}) or name.",
        ),
        flag("--judges", help="One mutant for each judge of the simulator, with fixed seeds."),
        flag("--trials", help="Some mutants against scenarios with real processes."),
        option(
            "--jobs",
            type=int,
            default=1,
            show_default=True,
            help="Number of mutants that run at the same time.",
        ),
        flag("--no-baseline", help="Do not run the same on the unchanged tree."),
        json_option("The last line is one JSON object, in any case."),
        option(
            "--table",
            metavar="FILE",
            help="Print a Markdown table of the JSON of earlier runs, in FILE and FILES; run nothing.",
        ),
        argument("files", "With --table: more such files.", metavar="[FILES]", nargs=-1),
    ],
    codes=exit_codes.MUTANTS,
    summary="run wrong changes against the tests that must notice them",
    wrong=lambda given: "FILES need --table" if given.files and not given.table else "",
    extra="server",
)
FAILOVER = Declared(
    "failover",
    "dledger.chaos.failover:run",
    [
        option("--kills", type=int, default=20, show_default=True, help="Rounds."),
        flag("--load", help="Keep messages in flight all the time."),
        option(
            "--window",
            type=int,
            default=64,
            show_default=True,
            help="Number of messages in flight, of 1 KiB.",
        ),
        flag("--stop", help="SIGSTOP for 10 s instead of SIGKILL."),
        option("--seed", type=int, default=0, help="Random seed of the moments of the failures."),
        json_option(_LAST_LINE),
        flag("--check", help="Exit code 1 when the budget is not met."),
        option(
            "--dir",
            metavar="DIR",
            type=click.Path(file_okay=False),
            help="Keep stores and logs here. [default: a temporary directory]",
        ),
    ],
    codes=exit_codes.FAILOVERS,
    summary="measure failovers of a group of real processes",
    epilog="It measures with bare sockets in a process of its own. `dledger chaos run kill-leader-idle`, "
    "kill-leader-loaded and pause-leader do the same with our client, judge the log, and write a report.",
    extra="server",
)
REPLACE = Declared(
    "replace",
    "dledger.chaos.replacement:run",
    [
        option(
            "--mib", type=int, default=64, show_default=True, help="MiB in the log before the measurement."
        ),
        flag("--load", help="Keep 64 messages in flight all the time."),
        json_option(_LAST_LINE),
        flag("--check", help="Exit code 1 when a pause is longer than 1 s."),
    ],
    codes=exit_codes.FAILOVERS,
    summary="replace members of a group of real processes under load",
    epilog="It measures the longest pause of writes with bare sockets. `dledger chaos run replace-node` "
    "wipes nodes under all kinds of clients, judges the log, and writes a report.",
    extra="server",
)
LIST = Declared(
    "list",
    "dledger.chaos.trials.command:show",
    [json_option("One JSON object.")],
    codes=exit_codes.TEXTS,
    summary="the scenarios for groups of real processes",
    extra="server",
)
RUN = Declared(
    "run",
    "dledger.chaos.trials.command:run",
    [
        argument("scenario", "Name of a scenario, or a file that ends with .toml.", metavar="SCENARIO"),
        option("--seconds", type=POSITIVE_SECONDS, metavar="S", help="How long clients and faults run."),
        option("--seed", type=int, default=0, show_default=True, help="Seed of the plan of faults."),
        json_option(_LAST_LINE),
        option("--report", metavar="DIR", help="Write result.json and report.html into this directory."),
        option(
            "--dir",
            metavar="DIR",
            type=click.Path(file_okay=False),
            help="Keep stores and logs here. [default: a temporary directory]",
        ),
        option(
            "--namesrv",
            metavar="ADDR",
            help="Do it to a group that others have started: its NameServers, host:port;host:port.",
        ),
        option(
            "--broker-name", metavar="NAME", help="With --namesrv: which broker group, if there are several."
        ),
        option(
            "--exec",
            metavar="KIND=COMMAND",
            multiple=True,
            help="With --namesrv: this command injects faults of this kind. {node}, {host}, {port}, "
            "{address} and {amount} are replaced. May be given several times.",
        ),
        option(
            "--exec-undo",
            metavar="KIND=COMMAND",
            multiple=True,
            help="With --namesrv: this command ends a fault of this kind.",
        ),
        flag("--yes", help="With --namesrv: do it. Without this option, only say what would be done."),
    ],
    codes=exit_codes.TRIALS,
    summary="run a group of real processes under faults, and judge it",
    extra="server",
    wrong=_wrong_trial,
)
SUITE = Declared(
    "suite",
    "dledger.chaos.trials.suite:run",
    [
        flag("--smoke", help="15 seconds for each scenario. This is the default."),
        flag("--full", help="Three minutes for each scenario, ten where disks or networks are broken."),
        option("--seconds", type=POSITIVE_SECONDS, metavar="S", help="Another duration of each trial."),
        option(
            "--only", metavar="NAME", multiple=True, help="Only this scenario; may be given several times."
        ),
        option("--seed", type=int, default=0, show_default=True, help="Seed of the plans."),
        option(
            "--results",
            metavar="FILE",
            help="File with results (JSON lines). Trials that it has already are not run again.",
        ),
        option("--report", metavar="DIR", help="Write the reports below this directory."),
        json_option(_LAST_LINE),
    ],
    codes=exit_codes.TRIALS,
    summary="run all scenarios, one after another",
    extra="server",
    wrong=lambda given: "--smoke and --full exclude each other" if given.smoke and given.full else "",
)
REPLAY = Declared(
    "replay",
    "dledger.chaos.flight_replay:run",
    [
        argument(
            "path",
            "A file of a flight recorder, or the directory of a node's log (dledger-ID).",
            metavar="PATH",
        ),
        flag("--steps", help="Show all steps, not only the last ones."),
        option("--picture", metavar="FILE", help="Also write an HTML page."),
        json_option("The last line is one JSON object, with the steps that are shown."),
    ],
    codes=exit_codes.REPLAY,
    summary="step the core of a node through its flight recording, and compare",
    epilog="The setting flightRecorderMb switches the recorder on.",
)
CHAOS = Group(
    "chaos",
    "Simulated groups, wrong changes that tests must notice, and groups of real processes under faults.",
    [LIST, RUN, SUITE, REPLAY, SIMULATION, MUTANTS, FAILOVER, REPLACE],
)
