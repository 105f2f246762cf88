"""`dledger admin`: its groups of commands. Each group is declared in a module of this package; a module of
`dledger.commands.admin` does its work."""
