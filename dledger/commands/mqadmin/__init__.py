"""`dledger mqadmin`: RocketMQ's commands, with their names, options and columns.

The module `options` reads a command line as Apache's mqadmin does. `output` prints, or with `--json`
collects, the results. `call` defines the argument that each command gets, and `cli` runs a command. Each
other module holds the commands about one subject. Their names and options are declared in
`dledger.commands.declared.mqadmin`.
"""
