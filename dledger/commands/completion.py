"""`dledger completion`: prints the script with which a shell completes `dledger`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from dledger.commands.declaring import Command
from dledger.commands.exit_codes import TEXTS

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_DLEDGER_COMPLETE"
"""Name of the environment variable in which a shell tells `dledger` what to complete. Click defines it."""


@click.command(
    "completion",
    cls=Command,
    codes=TEXTS,
    short_help="print the completion script for a shell",
    epilog='bash: eval "$(dledger completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc. '
    "fish: dledger completion fish > ~/.config/fish/completions/dledger.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what a shell needs to complete dledger: commands, options, topics and groups."""
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    print(found(ctx.find_root().command, {}, "dledger", VARIABLE).source())
