"""A broker shown to its operators, and its settings changed: 25, 26, 28 (AdminBrokerProcessor).

Settings are those of one node, as RocketMQ's: any node answers, and a change reaches no other.
"""

from __future__ import annotations

from dledger.broker.context import BrokerContext
from dledger.broker.requests import Call, Needs, handles
from dledger.remoting.bodies import KvTable
from dledger.remoting.codes import VERSION, RequestCode

OWN = (
    "the answering broker's own knowledge at that moment; `commitLogMaxOffset` is the end of its log,"
    " committed or not"
)


class AdminProcessor:
    """Handlers of the administration codes."""

    def __init__(self, context: BrokerContext) -> None:
        self._requests = context.settings_requests
        self._figures = context.figures

    @handles(RequestCode.UPDATE_BROKER_CONFIG, needs=Needs.ANY)
    def change_settings(self, call: Call[None]) -> None:
        """Properties that may change while the broker runs; answered when its configuration file has them."""
        self._requests.update(call.connection, call.request)

    @handles(RequestCode.GET_BROKER_CONFIG, needs=Needs.ANY, reads=OWN)
    def show_settings(self, call: Call[None]) -> None:
        """The effective properties, as a .properties text."""
        self._requests.show(call.connection, call.request, {"version": str(VERSION)})

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO, needs=Needs.ANY, reads=OWN)
    def runtime(self, call: Call[None]) -> None:
        """Figures for dashboards."""
        call.respond(body=KvTable(self._figures()).encode())
