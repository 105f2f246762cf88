"""`dledger mqadmin`: declares RocketMQ's commands and their options, one module for each subject. The
module `table` lists all of them."""
