"""`dledger mqadmin`: what RocketMQ's commands do, with RocketMQ's names, options and columns.

`options` reads a command line as Apache's mqadmin does, `output` prints (or, with `--json`, collects), `call`
is what a command gets, `cli` runs one. The other modules are the commands, by what they are about. Their
names and options are declared in `dledger.commands.declared.mqadmin`.
"""
