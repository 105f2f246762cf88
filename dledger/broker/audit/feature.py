"""Audits of a running broker, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger.broker.audit.audit_jobs import AuditJobs
from dledger.broker.audit.audit_processor import AuditProcessor
from dledger.broker.audit.log_processor import LogProcessor
from dledger.broker.audit.shipping import Shipper, ShipSettings
from dledger.broker.config import BrokerConfig
from dledger.broker.core import Core, Members
from dledger.broker.feature import Feature, Task
from dledger.broker.figures import Figure


class AuditFeature(Feature):
    """Audits of a running broker: scans that auditors request, and scans whose rows are shipped to a
    directory or an object store."""

    def __init__(self, core: Core, members: Members) -> None:
        config = core.settings.now
        self.jobs: AuditJobs = AuditJobs(core.env, config.audit_bytes_per_s)
        ship = ShipSettings(
            config.digest_ship_path,
            config.dledger_group or config.broker_name,
            config.digest_ship_interval_ms,
            config.digest_rescan_hours,
        )
        self.shipper: Shipper = Shipper(core.env, ship, config.store_root, config.self_id, self.jobs.pace)
        self._ships = bool(config.digest_ship_path)
        self.processors = (AuditProcessor(core, self.jobs, members), LogProcessor(core))
        core.settings.listen(self._settings_changed)

    def tasks(self) -> Mapping[str, Task]:
        """See `Feature`."""
        return {"audit": self.jobs.run, "ship": self.shipper.run}

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        if not self._ships:
            return
        stats = self.shipper.stats
        yield Figure(
            lambda: stats.shipped_ms / 1000,
            "When digests were last shipped",
            "digests_shipped_timestamp_seconds",
        )
        yield Figure(
            lambda: stats.segments, "Segments scanned to ship digests", "digest_segments_scanned", counts=True
        )
        yield Figure(
            lambda: stats.failures,
            "Rounds in which digests could not be shipped",
            "digest_rounds_failed",
            counts=True,
        )

    def _settings_changed(self, config: BrokerConfig) -> None:
        self.jobs.pace.limit(config.audit_bytes_per_s)
