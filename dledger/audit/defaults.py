"""Default values of the audits' options, and the values of `--fail-on`."""

LAG_WARNING_ENTRIES = 100_000
"""Limit for how many entries a replica may be behind. If it is further behind, the audit reports a
warning."""
RESCAN_HOURS = 168
"""Hours after which a kept scan is repeated. Brokers that ship digests have the same default
(`digestRescanHours`)."""
DIGESTS_MAX_AGE_S = 24 * 3600
"""Age, in seconds, above which the last shipped digests count as old."""
FAIL_ON = {"warning": 1, "error": 2, "critical": 3}
"""Exit code for each severity that `--fail-on` can name. Lower exit codes become 0. The exit code 4
(something could not be examined) stays."""
