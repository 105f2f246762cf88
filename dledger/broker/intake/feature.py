"""Receiving of messages, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.auth.feature import AuthFeature
from dledger.broker.core import Core
from dledger.broker.feature import Feature
from dledger.broker.figures import Figure
from dledger.broker.forwarding import Origins
from dledger.broker.intake.plain_sends import PlainSends
from dledger.broker.intake.resends import Resends
from dledger.broker.intake.send_back_processor import SendBackProcessor
from dledger.broker.intake.send_checks import SendChecks
from dledger.broker.intake.send_processor import SendProcessor
from dledger.broker.store.index_service import IndexService
from dledger.broker.timer.feature import TimerFeature
from dledger.broker.topic.feature import TopicFeature


class IntakeFeature(Feature):
    """All ways in which messages enter the broker, as a feature."""

    def __init__(
        self,
        core: Core,
        index: IndexService,
        origins: Origins,
        checks: SendChecks,
        auth: AuthFeature,
        topic: TopicFeature,
        timer: TimerFeature,
    ) -> None:
        self.resends: Resends = Resends(core.store, index, core.reader, core.gate, core.settings)
        self.checks: SendChecks = checks
        sends = SendProcessor(
            core, topic.creation, topic.announcements, timer.claims, origins, self.resends, self.checks
        )
        self.plain_sends: PlainSends = PlainSends(core, self.checks, self.resends, sends.answers, auth.access)
        back = SendBackProcessor(core, topic.creation, topic.announcements, auth.check_needed)
        self.processors = (sends, back)
        self.services = (self.resends,)

    def applied(self, index: int) -> None:
        """See `Feature`."""
        self.resends.applied(index)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        yield Figure(
            lambda: self.resends.recognized,
            "Repeated messages that were deduplicated, as they were already stored",
            "resends_recognized",
            "recognizedResends",
            counts=True,
        )
