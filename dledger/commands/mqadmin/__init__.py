"""`dledger mqadmin`: RocketMQ's commands, with their names, options and columns.

`options` reads a command line as Apache's mqadmin does, `output` prints (or, with `--json`, collects), `call`
is the argument of each command, `cli` runs one. The other modules are the commands, by subject. Their names
and options are declared in `dledger.commands.declared.mqadmin`.
"""
