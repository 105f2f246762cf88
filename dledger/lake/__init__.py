"""Topics as tables: committed messages, written to a Delta Lake or Iceberg table and proven equal to the log.

* `log_reading`: the committed entries of a broker group, from its brokers or from a store directory, in order
  of the log, each checked against its CRC and the chain of CRCs
* `rows`: entries as rows of the table
* `certificates`: what a part of the log contains, in a form that can be compared with rows of a table
* `tables`: what the writer and the audit need of a table, whatever its format is
* `delta`: tables of Delta Lake
* `iceberg`: tables of Apache Iceberg
* `command`: `dledger lake` and `dledger audit table`
* `opening`: opens a table of either format
* `typed`: JSON bodies as columns
* `sources`: the logs from which a table is filled
* `history`: `dledger.read`, also of a table and the brokers behind it
* `writer`: follows the log, and adds each message to the table exactly once
* `deleted`: removes the messages of deleted topics
* `table_audit`: compares a table with its certificates and with the log
"""
