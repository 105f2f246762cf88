"""A broker shown to its operators: 26 GET_BROKER_CONFIG, 28 GET_BROKER_RUNTIME_INFO
(AdminBrokerProcessor)."""

from __future__ import annotations

from dledger.broker.config import effective_properties
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
        self._config = context.config
        self._figures = context.figures

    @handles(RequestCode.GET_BROKER_CONFIG, needs=Needs.ANY, reads=OWN)
    def broker_config(self, call: Call[None]) -> None:
        """The effective properties, as a .properties text."""
        properties = effective_properties(self._config)
        text = "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))
        call.respond(ext={"version": str(VERSION)}, body=text.encode())

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO, needs=Needs.ANY, reads=OWN)
    def runtime(self, call: Call[None]) -> None:
        """Figures for dashboards."""
        call.respond(body=KvTable(self._figures()).encode())
