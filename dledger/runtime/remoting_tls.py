"""TLS of the remoting protocol, under RocketMQ's names (TlsSystemConfig): towards clients, and as a client.

A server's mode is `disabled`, `permissive` (with and without TLS on one port) or `enforcing`. As a client we
check the server's certificate unless told otherwise; RocketMQ's clients do not, unless told so.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from dledger.runtime.environment_variables import variable
from dledger.runtime.log import Log
from dledger.runtime.settings import ConfigError, Setting
from dledger.runtime.tls import ReadFiles, watch_handshakes

REFRESH_INTERVAL_S = 1.0
"""How long files that changed may go unnoticed, at most, before the next handshake."""
HANDSHAKE_TIMEOUT_S = 10.0
"""From the first byte to the end of the handshake; then the connection is closed."""
ENABLE_VARIABLE = "ROCKETMQ_TLS"
CA_VARIABLE = "ROCKETMQ_TLS_CA"
CERTIFICATE_VARIABLE = "ROCKETMQ_TLS_CERT"
KEY_VARIABLE = "ROCKETMQ_TLS_KEY"

MODES: Mapping[str, str] = MappingProxyType({mode: mode for mode in ("disabled", "permissive", "enforcing")})
CLIENT_AUTH: Mapping[str, str] = MappingProxyType({word: word for word in ("none", "optional", "require")})
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


@dataclass(frozen=True)
class TlsSettings:
    """TLS of a broker or a NameServer: as a server, and as a client of others."""

    mode: Annotated[str, Setting("tls.server.mode", choices=MODES, important=True)] = "permissive"
    """Who may connect: `disabled` without TLS only, `permissive` with it and without, `enforcing` with it
    only. Without a certificate `permissive` is `disabled`."""
    certificate: Annotated[str, Setting("tls.server.certPath")] = ""
    """PEM file: the server's certificate, with intermediates. Read again when it changes, as all these."""
    key: Annotated[str, Setting("tls.server.keyPath")] = ""
    """PEM file: its key."""
    password: Annotated[str, Setting("tls.server.keyPassword", secret=True)] = ""
    """Of the key, if it is encrypted; never shown."""
    client_auth: Annotated[str, Setting("tls.server.need.client.auth", choices=CLIENT_AUTH)] = "none"
    """Whether clients are asked for a certificate. One that is shown is always checked."""
    authority: Annotated[str, Setting("tls.server.trustCertPath")] = ""
    """PEM file: the authorities that sign clients."""
    enable: Annotated[bool, Setting("tls.enable")] = False
    """Whether we connect to others (NameServers, members of the group for clients) with TLS."""
    own_certificate: Annotated[str, Setting("tls.client.certPath")] = ""
    """PEM file: the certificate that is shown to others, where they ask for one."""
    own_key: Annotated[str, Setting("tls.client.keyPath")] = ""
    """PEM file: its key."""
    own_password: Annotated[str, Setting("tls.client.keyPassword", secret=True)] = ""
    """Of that key, if it is encrypted; never shown."""
    server_auth: Annotated[bool, Setting("tls.client.authServer")] = True
    """Whether certificates of others are checked; false in RocketMQ."""
    server_authority: Annotated[str, Setting("tls.client.trustCertPath")] = ""
    """PEM file: the authorities that sign others; empty: those of the system."""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("tls.server.certPath, tls.server.keyPath: both or none must be set")
        if self.mode == "enforcing" and not self.certificate:
            raise ValueError("tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath")
        if self.client_auth != "none" and not self.authority:
            raise ValueError("tls.server.need.client.auth needs tls.server.trustCertPath")

    @property
    def listens(self) -> bool:
        """Whether clients may connect with TLS."""
        return self.mode != "disabled" and bool(self.certificate)

    def server(self, log: Log) -> ServerTls | None:
        """For those who connect to us; None without TLS. ConfigError when a file is missing or no good."""
        return ServerTls(self, log) if self.listens else None

    def client_context(self) -> ssl.SSLContext | None:
        """For our connections to others; None without TLS. ConfigError when a file is missing or no good."""
        if not self.enable:
            return None
        options = TlsOptions(
            ca=self.server_authority,
            certificate=self.own_certificate,
            key=self.own_key,
            password=self.own_password,
            verify=self.server_auth,
        )
        try:
            return options.context()
        except OSError as error:
            raise ConfigError(f"tls.client files cannot be used: {error}") from error


@dataclass(frozen=True)
class TlsOptions:
    """TLS of a client. Times, names and sizes of what is checked are OpenSSL's; TLS 1.2 at least."""

    ca: str = ""
    """PEM file: the authorities that servers' certificates are checked against; empty: those of the
    system."""
    certificate: str = ""
    """PEM file: our certificate, where servers ask for one."""
    key: str = ""
    """PEM file: its key; empty: it is in the same file."""
    password: str = field(default="", repr=False)
    """Of the key, if it is encrypted."""
    verify: bool = True
    """Whether servers' certificates are checked. False trusts whoever answers."""
    check_hostname: bool = False
    """Whether a certificate must be made out to the host that was dialled: routes name brokers by address."""

    @classmethod
    def from_environment(cls) -> TlsOptions | None:
        """As ROCKETMQ_TLS=true asks for, with ROCKETMQ_TLS_CA, ROCKETMQ_TLS_CERT and ROCKETMQ_TLS_KEY; None
        where it does not. ValueError for another word."""
        word = variable(ENABLE_VARIABLE).lower()
        if word not in ("", "true", "false"):
            raise ValueError(f"{ENABLE_VARIABLE}={word}: expected true or false")
        if word != "true":
            return None
        ca, certificate, key = (variable(name) for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE))
        return cls(ca, certificate, key)

    def context(self) -> ssl.SSLContext:
        """For connections. OSError (also of OpenSSL) names a file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        for path in filter(None, (self.ca, self.certificate, self.key)):
            open(path, "rb").close()  # an error says which one: OpenSSL's do not
        if self.ca:
            context.load_verify_locations(self.ca)
        elif self.verify:
            context.load_default_certs()
        if self.certificate:
            # With an empty password OpenSSL would ask on the terminal.
            context.load_cert_chain(self.certificate, self.key or None, password=lambda: self.password)
        return context


class ServerTls:
    """The context of a server. Changed files count for the next connection (`refresh`)."""

    def __init__(self, settings: TlsSettings, log: Log) -> None:
        """Read the files; ConfigError when one is missing or no good."""
        self._settings = settings
        self.enforcing: bool = settings.mode == "enforcing"
        self.on_refused: Callable[[str], None] = lambda reason: None
        """Told why a handshake failed: asyncio tells nobody."""
        paths = [path for path in (settings.certificate, settings.key, settings.authority) if path]
        try:
            self._read = ReadFiles(paths, log)
            self.context: ssl.SSLContext = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except OSError as error:
            raise ConfigError(f"tls.server files cannot be used: {error}") from error
        watch_handshakes(self.context, lambda reason: self.on_refused(reason))
        self._looked = 0.0

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        settings = self._settings
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = _VERIFY[settings.client_auth]
        context.load_cert_chain(settings.certificate, settings.key, password=lambda: settings.password)
        if settings.authority:
            context.load_verify_locations(settings.authority)
        return context

    def refresh(self, now_s: float) -> None:
        """Before a handshake: read changed files again, at loop time `now_s`. Those that cannot be used (half
        written ...) leave all as it was. An authority that was taken out stays trusted until the next
        start."""
        if now_s - self._looked >= REFRESH_INTERVAL_S:
            self._looked = now_s
            self._read.refresh(self._load_again)

    def reload(self) -> str:
        """Read the files again. Empty, or why they cannot be used."""
        return self._read.read_again(self._load_again)

    def _load_again(self) -> None:
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # key and certificate fit, or this raises
        self._load(self.context)
