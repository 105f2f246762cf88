"""Proofs that a request comes from a member: what counts, and what does not."""

from __future__ import annotations

import pytest

from dledger.peers import proofs
from dledger.peers.proofs import MAX_TOLD, WINDOW, Proofs

CONTENT = [b"28101", b"0", b"name", b"value", b"body"]


def told(receiver: Proofs, peer: str) -> str:
    """What a peer was told at whose address it answers."""
    secret = receiver.tell(peer)
    receiver.introduced(peer, secret)
    return secret


def pair() -> tuple[Proofs, Proofs]:
    """The member n0, and n1 which it has dialled."""
    receiver, sender = Proofs("n0", b"secret of n0"), Proofs("n1", b"secret of n1")
    sender.hear("n0", told(receiver, "n1"))
    return receiver, sender


def test_a_proof_counts_once() -> None:
    receiver, sender = pair()
    first, second = sender.make("n0", CONTENT), sender.make("n0", CONTENT)
    assert receiver.check(second, CONTENT) == "n1", "in whatever order they come"
    assert receiver.check(first, CONTENT) == "n1"
    assert receiver.check(first, CONTENT) is None
    assert receiver.check(second, CONTENT) is None


@pytest.mark.parametrize("at", range(len(CONTENT)))
def test_a_proof_is_of_one_content(at: int) -> None:
    receiver, sender = pair()
    proof = sender.make("n0", CONTENT)
    other = [*CONTENT[:at], CONTENT[at] + b"x", *CONTENT[at + 1 :]]
    assert receiver.check(proof, other) is None
    assert receiver.check(proof, [*CONTENT[:3], b"valuebody", b""]) is None, "parts keep their ends"
    assert receiver.check(proof, CONTENT) == "n1", "a wrong one does not use it up"


def test_a_proof_is_for_one_receiver() -> None:
    receiver, sender = pair()
    other = Proofs("n2", b"secret of n2")
    sender.hear("n2", told(other, "n1"))
    assert receiver.check(sender.make("n2", CONTENT), CONTENT) is None
    assert other.check(sender.make("n0", CONTENT), CONTENT) is None


def test_a_receiver_that_started_again_takes_nothing_from_before() -> None:
    receiver, sender = pair()
    captured = sender.make("n0", CONTENT)
    assert receiver.check(captured, CONTENT) == "n1"
    later = Proofs("n0", b"another secret")
    assert later.check(captured, CONTENT) is None, "it has told nothing yet"
    sender.hear("n0", told(later, "n1"))
    assert later.check(captured, CONTENT) is None
    assert later.check(sender.make("n0", CONTENT), CONTENT) == "n1"


def test_a_sender_that_started_again_begins_anew() -> None:
    """The receiver dials it again: its numbers, which start over, are under another secret."""
    receiver, sender = pair()
    captured = sender.make("n0", CONTENT)
    assert receiver.check(captured, CONTENT) == "n1"
    again = Proofs("n1", b"another secret")
    again.hear("n0", told(receiver, "n1"))
    assert receiver.check(again.make("n0", CONTENT), CONTENT) == "n1"
    assert receiver.check(captured, CONTENT) is None


def test_a_member_cannot_pass_for_another() -> None:
    receiver, sender = pair()
    told(receiver, "n2")
    dial, number, mac, _ = sender.make("n0", CONTENT).split(".")
    for dialled in (dial, "2"):
        assert receiver.check(f"{dialled}.{number}.{mac}.n2", CONTENT) is None


def test_the_newest_secrets_count(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, sender = pair()
    under_way = sender.make("n0", CONTENT)
    for _ in range(MAX_TOLD - 1):
        told(receiver, "n1")
    assert receiver.check(under_way, CONTENT) == "n1", "signed before the connection was lost"
    late = sender.make("n0", CONTENT)
    told(receiver, "n1")
    assert receiver.check(late, CONTENT) is None
    sender.hear("n0", told(receiver, "n1"))
    proof = sender.make("n0", CONTENT)
    receiver.revoke("n1")
    assert receiver.check(proof, CONTENT) is None


def test_numbers_far_behind_do_not_count() -> None:
    receiver, sender = pair()
    made = [sender.make("n0", CONTENT) for _ in range(WINDOW + 1)]
    assert receiver.check(made[WINDOW], CONTENT) == "n1"
    assert receiver.check(made[1], CONTENT) == "n1"
    assert receiver.check(made[0], CONTENT) is None, "nothing is known of it"
    assert receiver.check(made[1], CONTENT) is None
    far = [sender.make("n0", CONTENT) for _ in range(WINDOW)][-1]
    assert receiver.check(far, CONTENT) == "n1"
    assert receiver.check(far, CONTENT) is None
    assert receiver.check(made[WINDOW], CONTENT) is None


def test_who_was_told_nothing_makes_no_proof() -> None:
    receiver, sender = pair()
    assert sender.make("n2", CONTENT) == ""
    for nothing in (None, "", "1.zz", "x" * 400, "1." + "0" * 63):
        sender.hear("n0", nothing)
        assert sender.make("n0", CONTENT) == "" and sender.receivers == ()
    sender.hear("n0", told(receiver, "n1"))
    assert sender.receivers == ("n0",)
    sender.forget("n0")
    assert sender.make("n0", CONTENT) == ""


@pytest.mark.parametrize(
    "proof",
    ["", "....", "1.1..n1", f"1.1.{'0' * 64}.n1", f"-1.1.{'0' * 64}.n1", f"{'9' * 99}.1.{'0' * 64}.n1"],
)
def test_what_is_no_proof(proof: str) -> None:
    receiver, _ = pair()
    assert receiver.check(proof, CONTENT) is None


def test_secrets_of_a_process_differ() -> None:
    receiver, _ = pair()
    secrets = [
        told(receiver, "n1"),
        told(receiver, "n1"),
        told(receiver, "n2"),
        told(Proofs("n0", b"x"), "n1"),
    ]
    assert len({text.partition(".")[2] for text in secrets}) == 4
    assert all(len(bytes.fromhex(text.partition(".")[2])) == proofs.SECRET_BYTES for text in secrets)


def test_a_secret_counts_once_its_peer_was_accepted() -> None:
    """Who listens at the address of a member, and is refused, was told one as well."""
    receiver, _ = pair()
    sender = Proofs("n1", b"of another process")
    secret = receiver.tell("n1")
    sender.hear("n0", secret)
    assert receiver.check(sender.make("n0", CONTENT), CONTENT) is None
    receiver.introduced("n1", secret)
    assert receiver.check(sender.make("n0", CONTENT), CONTENT) == "n1"
