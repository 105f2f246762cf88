"""A change of settings that takes effect is in the file, whenever the machine fails."""

from __future__ import annotations

import asyncio

import pytest
from test_sim_disk import content, machine, reboot

from dledger.namesrv.config import SETTINGS, NamesrvConfig
from dledger.runtime.env import Env
from dledger.runtime.live_settings import LiveSettings, SettingsSource
from dledger.runtime.settings import Property

OLD = b"# mine\norderMessageEnable=true\nlistenPort=1\n"
NEW = b"# mine\norderMessageEnable=false\nlistenPort=1\n"
PATH = "/namesrv.conf"


@pytest.mark.parametrize("power", [False, True])
def test_what_counts_is_durable_and_the_file_is_old_or_new(power: bool) -> None:
    outcomes: dict[bytes | None, None] = {}
    for effect in range(1, 9):
        counted: list[bool] = []

        async def change(env: Env, counted: list[bool] = counted) -> None:
            settings = LiveSettings(env, SETTINGS, NamesrvConfig(), SettingsSource(PATH))
            settings.listen(lambda config: counted.append(config.order_messages))
            await settings.update([Property("orderMessageEnable", "false")])
            assert counted == [settings.now.order_messages] == [False]
            await asyncio.Event().wait()

        world, files = machine(effect)
        file = files.open(PATH, create=True)
        file.pwritev([OLD], 0)
        file.fdatasync()
        files.sync_dir("/")
        world.kill("n0")
        world.restart("n0", change)
        world.crash_before("n0", effect, power=power)
        world.run_for(1)
        found = content(reboot(world), PATH)
        assert found == NEW or (found == OLD and not counted), effect
        outcomes[found] = None
    assert len(outcomes) == 2
