"""`dledger admin`: its groups of commands. Each is a module here, and has its actions in
`dledger.commands.admin`."""
