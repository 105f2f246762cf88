"""A broker group of real processes on this machine.

* `cluster`     configuration, start, stop, kill, status of a group in a directory
* `processes`   one process with its pid file and output
* `spec`        the settings of a group; `ports` finds free ports
* `default_group` the group of this directory, which commands use when no address is given
* `wire`        raw remoting frames over a blocking socket
"""
