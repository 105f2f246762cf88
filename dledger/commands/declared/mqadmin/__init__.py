"""`dledger mqadmin`: RocketMQ's commands with their options, by subject; `table` has all of them."""
