"""The options of the commands, one module a subject. `dledger.commands.declaring` says what a declaration is;
the table `dledger.commands.app.COMMANDS` says which module has which command."""
