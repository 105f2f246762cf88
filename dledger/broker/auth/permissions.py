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
        """Codes of sends that need nothing except the permission to send to one topic -> the header field
        with that topic."""

    def declare(self, code: int, rule: Rule, does: Does | None) -> None:
        """Note the rules of a request that the broker answers."""
        self._rules[code] = rule
        if does is not None:
            self._does[code] = does
        if rule.plain_topic and rule.perm == PUB:
            self.sends[code] = rule.topic

    def rule(self, code: int) -> Rule:
        """The permission that a request needs (ACL 1.0); an administrator if no broker answers it."""
        return self._rules.get(code, ADMIN)

    def does(self, code: int) -> Does | None:
        """The actions that a request names (ACL 2.0); None if they follow from its rule."""
        return self._does.get(code)
