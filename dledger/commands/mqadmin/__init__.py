"""`dledger mqadmin`: RocketMQ's commands, with their names, options and columns.

`options` reads a command line as Apache's mqadmin does, `output` prints (or, with `--json`, collects), `call`
is what a command gets, `table` is the list of all of them. The other modules are the commands, by what they
are about; each ends with the table of its own.
"""
