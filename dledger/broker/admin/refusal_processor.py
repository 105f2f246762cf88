"""Answers unsupported requests with the reason why they are not supported (`refusals`)."""

from __future__ import annotations

from dledger.broker.admin.refusals import REFUSED
from dledger.broker.auth import actions, required
from dledger.broker.requests import Call, Needs, handles
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError


class RefusalProcessor:
    """Handler of all unsupported requests."""

    def refuse(self, call: Call[None]) -> None:
        """Refuse the request with the reason why it is not supported."""
        why = REFUSED[RequestCode(call.request.code)]
        raise RemotingError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, why)


for _code in REFUSED:
    handles(_code, needs=Needs.ANY, reads="nothing: refused", may=required.ACCOUNT, does=actions.NOTHING)(
        RefusalProcessor.refuse
    )
