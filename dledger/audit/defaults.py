"""What options of the audits are when nobody gives them, and what `--fail-on` may say."""

LAG_WARNING_ENTRIES = 100_000
"""A replica that is more entries behind is worth a warning."""
RESCAN_HOURS = 168
"""Hours after which a kept scan is made again, as of brokers that ship digests (`digestRescanHours`)."""
DIGESTS_MAX_AGE_S = 24 * 3600
"""Seconds after which what brokers shipped last is old."""
FAIL_ON = {"warning": 1, "error": 2, "critical": 3}
"""Exit codes below that of the severity chosen become 0; 4 (could not look) stays."""
