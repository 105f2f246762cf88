"""Who leads: terms, votes, roles, heartbeats, check-quorum (`elector`); members (`membership`). Pure."""
