"""`dledger admin`: topics, groups, messages, offsets, brokers, NameServers and access control, for people.

They print tables with rich, or `--json` for programs. Commands that change something have `--dry-run`, and
those that destroy something ask first.

`running` connects and reports errors, `showing` prints, `places` finds the brokers that a command applies
to, `completing` completes names. The other modules are the commands, by subject.
"""
