"""The steps of the client machine that changes users (`user_history`)."""

from __future__ import annotations

import json

from dledger.chaos.scenarios.client_stage import BROKER_NAME
from dledger.chaos.scenarios.user_history import KnownUser, UserHistory
from dledger.client.core import ClientCore
from dledger.client.errors import ClientError
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.operator_headers import DeleteAclHeader, SubjectHeader, UserHeader
from dledger.runtime.env import Env

USERS, RESOURCES = 2, 3


async def change_a_user(core: ClientCore, history: UserHistory, life: int, env: Env) -> None:
    """Make one random change of one user or of its policies."""
    name = f"user{life}-{env.random.randrange(USERS)}"
    if name in history.unsure:
        return
    known = history.users.setdefault(name, KnownUser())
    history.unsure[name] = None  # until the change is done without any doubt
    lost = core.unanswered
    step, number = env.random.randrange(5), env.random.randrange(1000)
    try:
        if known.password is None:
            await _ask(core, RequestCode.AUTH_CREATE_USER, UserHeader(name), {"password": f"p{number}"})
            known.password = f"p{number}"
        elif step == 0:
            await _ask(core, RequestCode.AUTH_DELETE_USER, UserHeader(name))
            history.deleted_with_policies += bool(known.resources)
            known.password, known.resources = None, set()
        elif step == 1:
            await _ask(core, RequestCode.AUTH_UPDATE_USER, UserHeader(name), {"password": f"p{number}"})
            known.password = f"p{number}"
        elif step == 2 and known.resources:
            resource = sorted(known.resources)[number % len(known.resources)]
            await _ask(core, RequestCode.AUTH_DELETE_ACL, DeleteAclHeader(f"User:{name}", None, resource))
            known.resources.discard(resource)
        else:
            resource = f"Topic:t{number % RESOURCES}*"
            entry = {"resource": resource, "actions": ["Pub"], "decision": "Allow"}
            body = {"policies": [{"entries": [entry]}]}
            await _ask(core, RequestCode.AUTH_CREATE_ACL, SubjectHeader(f"User:{name}"), body)
            known.resources.add(resource)
    except ClientError:
        return
    if core.unanswered == lost:
        del history.unsure[name]


async def _ask(core: ClientCore, code: RequestCode, header: object, body: object = None) -> None:
    """Send a request to the leader. Raises ClientError if it was refused or its outcome is unknown."""
    data = b"" if body is None else json.dumps(body).encode()
    answer = await core.invoke_leader(core.group(BROKER_NAME), None, code, header, data)  # type: ignore[arg-type]
    if answer.code != ResponseCode.SUCCESS:
        raise ClientError(f"{code.name}: {answer.remark}")
