"""The options of the commands, one module for each subject. `dledger.commands.declaring` explains
declarations. The table `dledger.commands.app.COMMANDS` lists the module of each command."""
