"""Default values of the audits' options, and the values of `--fail-on`."""

LAG_WARNING_ENTRIES = 100_000
"""If a replica is more entries behind than this, that is a warning."""
RESCAN_HOURS = 168
"""Hours after which a kept scan is repeated, as for brokers that ship digests (`digestRescanHours`)."""
DIGESTS_MAX_AGE_S = 24 * 3600
"""Seconds after which the last shipped digests count as old."""
FAIL_ON = {"warning": 1, "error": 2, "critical": 3}
"""Exit codes below that of the chosen severity become 0; 4 (something could not be examined) stays."""
