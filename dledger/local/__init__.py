"""A broker group of real processes on this machine.

* `cluster`     configuration, start, stop, kill, status of a group in a directory
* `processes`   one process with its pid file and output
* `spec`        what a group is made of; `ports` free ports
* `wire`        raw remoting frames over a blocking socket
"""
