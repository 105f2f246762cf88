"""The access rules of all requests, collected from the declarations of the requests."""

from __future__ import annotations

from dledger.broker.auth.actions import Does
from dledger.broker.auth.plain_acl import PUB
from dledger.broker.auth.required import ADMIN, Rule


class Permissions:
    """The access rules of all requests of a broker, by request code."""

    def __init__(self) -> None:
        self._rules: dict[int, Rule] = {}
        self._does: dict[int, Does] = {}
        self.sends: dict[int, str] = {}
        """Maps request codes to the header field with the topic, for requests that need only the permission
        to send to this topic."""

    def declare(self, code: int, rule: Rule, does: Does | None) -> None:
        """Note the access rules of a request that the broker answers."""
        self._rules[code] = rule
        if does is not None:
            self._does[code] = does
        if rule.plain_topic and rule.perm == PUB:
            self.sends[code] = rule.topic

    def rule(self, code: int) -> Rule:
        """Return the rule of a request in ACL 1.0. For a code that the broker does not answer, the rule
        requires an administrator."""
        return self._rules.get(code, ADMIN)

    def does(self, code: int) -> Does | None:
        """Return the actions that a request names (ACL 2.0), or None if they follow from its rule in ACL
        1.0."""
        return self._does.get(code)
