"""A whole trial with Apache RocketMQ's Java and Go clients, while leaders are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.chaos.trials.other_tools import CLASSPATH
from tests.interop.conftest import ClientKind, missing, rocketmq_libraries

pytestmark = pytest.mark.interop

LIMIT_S = 500
SECONDS = "20"


@pytest.mark.parametrize("major", [4, 5])
def test_every_rule_holds_for_the_java_client_and_the_go_client(
    go_client: ClientKind | None, tmp_path: Path, major: int
) -> None:
    if go_client is None:
        missing("no Go to build the client with")
    arguments = ["other-clients", "--seconds", SECONDS, "--seed", str(major), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "dledger", "chaos", "run", *arguments, "--dir", str(tmp_path)],
        env={**os.environ, CLASSPATH: f"{rocketmq_libraries(major)}/*"},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    checked = {verdict["name"]: verdict["checked"] for verdict in result["verdicts"]}
    assert checked["others"] > 100 and checked["handed"] > 100
    print(f"\nJava {major} and Go: {result['counts']}")
