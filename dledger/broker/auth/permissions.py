"""What each request needs and does, as the requests were declared."""

from __future__ import annotations

from dledger.broker.auth.actions import Does
from dledger.broker.auth.plain_acl import PUB
from dledger.broker.auth.required import ADMIN, Rule


class Permissions:
    """The rules of all requests of a broker, by code."""

    def __init__(self) -> None:
        self._rules: dict[int, Rule] = {}
        self._does: dict[int, Does] = {}
        self.sends: dict[int, str] = {}
        """Codes of sends, which need to send to one topic and nothing else -> the header field with it."""

    def declare(self, code: int, rule: Rule, does: Does | None) -> None:
        """A broker answers this request."""
        self._rules[code] = rule
        if does is not None:
            self._does[code] = does
        if rule.plain_topic and rule.perm == PUB:
            self.sends[code] = rule.topic

    def rule(self, code: int) -> Rule:
        """What a request needs (ACL 1.0); an administrator if no broker answers it."""
        return self._rules.get(code, ADMIN)

    def does(self, code: int) -> Does | None:
        """What a request does (ACL 2.0) beyond what it needs."""
        return self._does.get(code)
