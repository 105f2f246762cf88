"""`dledger admin`: commands for people, about topics, groups, messages, offsets, brokers, NameServers and
access control.

The commands print tables with rich, or with `--json` one object for programs. Commands that change
something have `--dry-run`, and those that destroy something ask first. The module `running` connects and
reports errors, `showing` prints, `places` finds the brokers that a command applies to, and `completing`
completes names in a shell. Each other module holds the commands about one subject.
"""
