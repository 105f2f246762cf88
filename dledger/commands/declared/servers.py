"""`dledger broker` and `dledger namesrv`. Their options are RocketMQ's (`-c`, `-p`, `-m`), and one for
each property.

There are hundreds of properties, so they are not declared to click. The program receives every word that
click does not know as it was typed, and reads such words as `--name value` or `--name=value`.
"""

from __future__ import annotations

import click

from dledger.commands import exit_codes
from dledger.commands.declaring import Declared, argument, flag, option, settings


def _server(
    name: str, place: str, summary: str, text: str, *more: click.Parameter, extra: str = ""
) -> Declared:
    params: list[click.Parameter] = [
        option(
            "-c",
            "--config",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="Properties file, lines key=value.",
        ),
        flag("-p", "--print", help="Print the effective properties and exit."),
        flag("-m", "--important", help="Print the important properties and exit."),
        *more,
        argument(
            "properties",
            "Properties, each as --name value or --name=value: they override the file.",
            metavar="[--NAME VALUE]",
            nargs=-1,
            type=click.UNPROCESSED,
        ),
    ]
    return Declared(
        name,
        place,
        params,
        codes=exit_codes.SERVER,
        summary=summary,
        text=text,
        extra=extra,
        server=True,
        context_settings={**settings(), "ignore_unknown_options": True},
        options_metavar="[-c FILE] [-p | -m]",
        wrong=lambda given: "give either -p or -m, not both" if given.print and given.important else "",
    )


BROKER = _server(
    "broker",
    "dledger.broker.cli:program",
    "run a broker",
    "Run a RocketMQ-compatible broker on a replicated log, until SIGTERM.",
    option("-n", "name_servers", metavar="ADDR", help="NameServers; the same as --namesrvAddr ADDR."),
    extra="server",
)
NAMESRV = _server(
    "namesrv",
    "dledger.namesrv.cli:run",
    "run a NameServer",
    "Run a RocketMQ-compatible NameServer, until SIGTERM.",
    extra="server",  # only for httpPort
)
