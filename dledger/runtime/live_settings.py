"""Settings that change while a process runs: the current values, their listeners, and the configuration file.

A change applies to a single node. A request is applied as a whole or not at all. It is first written durably
to the configuration file, then applied in memory. Without a configuration file no setting is changed, because
the next start would undo the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dledger.runtime.atomic_file import publish
from dledger.runtime.env import Env
from dledger.runtime.files import Files
from dledger.runtime.properties_file import edit_properties, read_text
from dledger.runtime.settings import ConfigError, Property, Schema
from dledger.runtime.workers import Lane

C = TypeVar("C")


@dataclass(frozen=True)
class SettingsSource:
    """Where the settings of a process came from."""

    path: str = ""
    """Path of the configuration file, with links resolved; empty if there was none."""
    overrides: tuple[str, ...] = ()
    """Names of the settings that were given on the command line."""


class LiveSettings(Generic[C]):
    """Holds the current settings in `now`. Code that needs a value reads it from `now` each time, or
    registers a listener."""

    def __init__(self, env: Env, schema: Schema[C], config: C, source: SettingsSource | None = None) -> None:
        self._env = env
        self._source = source or SettingsSource()
        self._listeners: list[Callable[[C], None]] = []
        self.schema = schema
        self.now: C = config

    def listen(self, listener: Callable[[C], None]) -> None:
        """Register a function that is called with the new configuration after each change."""
        self._listeners.append(listener)

    async def update(self, properties: Iterable[Property]) -> dict[str, str]:
        """Change these settings, and return those that differ from before. Raises ConfigError, which says why
        nothing was changed. Only one call may run at a time."""
        config, changes = self.schema.change(self.now, properties)
        if not changes:
            return changes
        for key in changes:
            if key in self._source.overrides:
                raise ConfigError(
                    f"{key} was set on the command line (--{key}), which the next start would use "
                    "again: change it there"
                )
        await self._keep(changes)
        self.now = config
        for listener in self._listeners:
            listener(config)
        return changes

    async def _keep(self, changes: dict[str, str]) -> None:
        path = self._source.path
        if not path:
            raise ConfigError(
                "this process was started without a configuration file, so the next start would undo the "
                "change: start it with -c FILE"
            )
        env = self._env
        try:
            data = await env.workers.run(Lane.DISK, _edited, env.files, path, changes)
            await publish(env.files, env.workers, Lane.DISK, path, data, like=path)
        except OSError as error:
            raise ConfigError(
                f"the setting was not changed, because {path} cannot be written: {error.strerror or error}"
            ) from error


def _edited(files: Files, path: str, changes: dict[str, str]) -> bytes:
    return edit_properties(read_text(files, path), changes, path).encode()
