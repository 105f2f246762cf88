"""Declares commands: their options, their exit codes, and the place of the function that does the work.

A declaration imports click and nothing heavy. The function is imported when the command runs. So `--help`,
completion and a wrong command line are fast, and a missing package is reported with the extra that installs
it. See docs/explanation/decisions/0041-one-command-line.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from dledger.commands.exit_codes import ExitCodes

if TYPE_CHECKING:
    from dledger.runtime.options import Options

HELP_OPTIONS = ("-h", "--help")


def settings() -> dict[str, Any]:
    """Return click's settings for every command."""
    return {"help_option_names": list(HELP_OPTIONS)}


class Command(click.Command):
    """A click command whose help ends with its exit codes. A wrong command line ends with the exit code
    that the command declares for it."""

    def __init__(
        self, name: str, *, codes: ExitCodes, foreign: Mapping[str, str] = MappingProxyType({}), **more: Any
    ) -> None:
        """`foreign` maps options of other projects' commands to what is used here instead."""
        more.setdefault("context_settings", settings())
        super().__init__(name, **more)
        self.codes = codes
        self._foreign = foreign

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options."""
        params = self.get_params(ctx)
        arguments = [one.get_help_record(ctx) for one in params if isinstance(one, Explained)]
        options = [one.get_help_record(ctx) for one in params if isinstance(one, click.Option)]
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if shown := [row for row in rows if row is not None]:
                with formatter.section(title):
                    formatter.write_dl(shown)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: `format_options` writes the arguments, whatever this version of click does."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write click's text after the options, and the table of exit codes."""
        super().format_epilog(ctx, formatter)
        write_codes(self.codes, formatter)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Make the context as click does; a wrong command line ends with the declared exit code."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.NoSuchOption as error:
            instead = self._foreign.get(error.option_name)
            text = f"No such option: {error.option_name}: {instead}."
            told = click.UsageError(text, error.ctx) if instead else error
            raise _coded(told, self.codes.usage) from None
        except click.UsageError as error:
            raise _coded(error, self.codes.usage) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If options must not be used together, it ends with the declared exit code."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _coded(error, self.codes.usage) from None


class Declared(Command):
    """A command whose function is named by `place` as `module:function`. The function gets `Options` and
    returns the exit code. The value of an option that may be given several times, and of an argument with
    several words, is a list.

    `extra` names the packages that may be missing: `pip install 'dledger[extra]'`. `always` holds values
    that are not on the command line; they tell a function that does several commands which of them is run.
    `wrong` checks the options before anything heavy is imported, and returns which of them must not be
    used together.
    """

    def __init__(
        self,
        name: str,
        place: str,
        params: Iterable[click.Parameter],
        *,
        codes: ExitCodes,
        summary: str,
        text: str = "",
        epilog: str = "",
        extra: str = "",
        server: bool = False,
        always: Mapping[str, object] = MappingProxyType({}),
        wrong: Callable[[Any], str] = lambda given: "",
        **more: Any,
    ) -> None:
        super().__init__(
            name,
            codes=codes,
            params=list(params),
            callback=self._run,
            help=text or f"{summary[:1].upper()}{summary[1:]}.",
            short_help=summary,
            epilog=epilog or None,
            **more,
        )
        self.place = place
        self.extra = extra
        self._server = server
        self._always = always
        self._wrong = wrong

    def options(self, values: Mapping[str, Any]) -> Options:
        """Convert click's values into the options of the function. Raises UsageError if options must not
        be used together."""
        from dledger.runtime.options import Options

        given = {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}
        options = Options(**self._always, **given)
        if text := self._wrong(options):
            raise click.UsageError(text, click.get_current_context(silent=True))
        return options

    def _run(self, **values: Any) -> None:
        from dledger.runtime.early_end import end_on_sigterm
        from dledger.runtime.options import WrongUsage

        if self._server:
            end_on_sigterm()
        context = click.get_current_context()
        options = self.options(values)
        try:
            code = self.load()(options)
        except WrongUsage as error:
            raise click.UsageError(str(error), context) from error
        except ModuleNotFoundError as error:
            if not self.extra or (error.name or "").startswith("dledger"):
                raise
            needed = f"pip install 'dledger[{self.extra}]'"
            print(f"{context.command_path} needs {error.name}: {needed}", file=sys.stderr)
            code = self.codes.cannot_run
        sys.exit(code)

    def load(self) -> Callable[[Any], int]:
        """Import and return the function that does the work."""
        module, _, name = self.place.partition(":")
        found: Callable[[Any], int] = getattr(import_module(module), name)
        return found


class Group(click.Group):
    """A click command with sub-commands. For an unknown sub-command it suggests one with a similar name."""

    def __init__(self, name: str, summary: str, commands: Sequence[click.Command] = (), **more: Any) -> None:
        """`usage` is the exit code of a command line with an unknown sub-command."""
        self._usage = more.pop("usage", 2)
        more.setdefault("context_settings", settings())
        super().__init__(name, help=summary, short_help=more.pop("short_help", summary), **more)
        for one in commands:
            self.add_command(one)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the sub-commands in the order of their declaration."""
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes, if they are the same for all sub-commands."""
        super().format_epilog(ctx, formatter)
        families = {one.title: one for one in _families(self)}
        if len(families) == 1:
            write_codes(next(iter(families.values())), formatter)
        else:
            with formatter.section("Exit codes"):
                formatter.write_text(
                    f"Each command's --help has its own; {self._usage} is a wrong word here."
                )

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Make the context as click does. An unknown sub-command ends with the declared exit code; a
        command line without a sub-command prints the help."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise _coded(error, self._usage) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command as click does. The error for an unknown sub-command suggests one with a
        similar name."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            near = get_close_matches(args[0], names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are {', '.join(names)}."
            raise _coded(click.UsageError(f"No such command {args[0]!r}.{hint}", ctx), self._usage)
        return super().resolve_command(ctx, args)


def _families(group: click.Group) -> Iterator[ExitCodes]:
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from _families(command)
        elif isinstance(command, Command):
            yield command.codes


def _coded(error: click.UsageError, code: int) -> click.UsageError:
    """Set the exit code with which click ends the process for this error."""
    error.__dict__["exit_code"] = code
    return error


def write_codes(codes: ExitCodes, formatter: click.HelpFormatter) -> None:
    """Write the section of `--help` that explains the exit codes."""
    with formatter.section("Exit codes"):
        formatter.write_dl(codes.rows())


class Checked(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A type of option values that a function checks and converts. `place` names the function as
    `module:function`; the function raises ValueError with a text for people."""

    def __init__(self, place: str, completes: str = "", name: str = "text") -> None:
        """`completes` is `dir` or `file` if a shell is to complete names of directories or files."""
        self._place = place
        self._completes = completes
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check and convert a value. A default that is not a text is returned unchanged."""
        if not isinstance(value, str):
            return value
        module, _, name = self._place.partition(":")
        try:
            return getattr(import_module(module), name)(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the marker by which a shell completes names of files or directories, if this value is
        one."""
        return [CompletionItem(incomplete, type=self._completes)] if self._completes else []


PATH = Checked("dledger.runtime.remote_files:absolute", "dir")
"""Type of a value that is a directory, a file, or the URL of one of them."""
POSITIVE = click.IntRange(1)
NOT_NEGATIVE = click.IntRange(0)


def option(*names: str, **more: Any) -> click.Option:
    """Declare an option; the arguments are those of click's Option."""
    return click.Option(list(names), **more)


def flag(*names: str, help: str) -> click.Option:
    """Declare an option without a value."""
    return click.Option(list(names), is_flag=True, help=help)


def argument(name: str, text: str, **more: Any) -> click.Argument:
    """Declare an argument with its explanation."""
    return Explained([name], text=text, **more)


class Explained(click.Argument):
    """An argument that `--help` explains in the same way as options."""

    def __init__(self, names: Sequence[str], *, text: str, **more: Any) -> None:
        super().__init__(list(names), **more)
        self.text = text
        if self.nargs == -1 and self.metavar:
            self.metavar += "..."

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return name and explanation of the argument."""
        name = self.metavar or (self.name or "").upper()
        return f"{name}..." if self.nargs == -1 and not self.metavar else name, self.text


def json_option(text: str = "One JSON object on standard output.") -> click.Option:
    """Declare `--json`. Every command with a result has this option."""
    return click.Option(["--json"], is_flag=True, help=text)


def namesrv_option(text: str, when: str = "") -> click.Option:
    """Declare `--namesrv`. If it is not given, its value is None, and the command uses NAMESRV_ADDR.

    `when` is for a command with other options that say where to connect: it says when NAMESRV_ADDR is used
    there.
    """
    from dledger.runtime.environment_variables import NAMESRV_ADDR

    told = " ".join(filter(None, (NAMESRV_ADDR, when)))
    return click.Option(["--namesrv"], metavar="ADDR", help=f"{text} [default: {told}]")
