"""A new group is founded when its nodes reach each other; a node that waits says for which nodes."""

from __future__ import annotations

from member_group import MemberGroup

from dledger.chaos.machine import World

NAMES = ("n0", "n1", "n2")
WRONG = 50911


class Misled(MemberGroup):
    """A group in which the dLegerPeers of some nodes have a wrong address."""

    def __init__(self, world: World, wrong: dict[str, str]) -> None:
        super().__init__(world, founders=())
        self.founders = NAMES
        self.seeds = {name: self.address(name) for name in NAMES}
        for name in NAMES:
            self._static[name] = dict(self.seeds)
            if name in wrong:
                self._static[name][wrong[name]] = f"{wrong[name]}:{WRONG}"

    def correct(self, name: str) -> None:
        self.world.kill(name)
        self._static[name] = dict(self.seeds)
        self.start(name)

    def waits_for(self, name: str) -> list[str]:
        reasons = self.nodes[name].status()["reasons"]
        assert isinstance(reasons, list)
        return [text.removeprefix("no group yet: ") for text in reasons if text.startswith("no group yet: ")]


def test_a_new_node_says_who_is_missing() -> None:
    with World(1) as world:
        group = Misled(world, {})
        for name in NAMES[:2]:
            group.start(name)
        world.run_for(5)
        wanted = ["n2 is not reached at n2:40911, and has not connected to this node"]
        assert group.waits_for("n0") == group.waits_for("n1") == wanted
        assert not any("no group yet" in line for line in world.recent_log), "they may just be starting"
        world.run_for(60)
        assert sum("no group yet" in line for line in world.recent_log) == 2, "once each"
        group.start("n2")
        group.await_leader()
        world.run_for(1)
        assert not any(group.waits_for(name) for name in NAMES)


def test_one_node_that_reaches_all_others_founds_the_group() -> None:
    with World(2) as world:
        group = Misled(world, {"n0": "n1", "n1": "n2"})
        for name in NAMES:
            group.start(name)
        group.await_leader()
        assert not any(group.waits_for(name) for name in NAMES)


def test_nodes_that_reach_each_other_in_one_direction_say_which_address_is_wrong() -> None:
    with World(3) as world:
        wrong = {"n0": "n1", "n1": "n2", "n2": "n0"}
        group = Misled(world, wrong)
        for name in NAMES:
            group.start(name)
        world.run_for(30)
        for name, peer in wrong.items():
            text = f"{peer} is not reached at {peer}:{WRONG}, it reaches this node: check dLegerPeers"
            assert group.waits_for(name) == [text]
        group.correct("n1")
        group.await_leader()
