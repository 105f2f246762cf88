"""TLS of the remoting protocol, under RocketMQ's names (TlsSystemConfig), as a server and as a client.

A server's mode is `disabled`, `permissive` (with and without TLS on one port) or `enforcing`. Clients of this
project check the server's certificate unless the setting says otherwise; in RocketMQ's clients the default is
the opposite.
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
"""Seconds for which changed files may go unnoticed at most, before the next handshake."""
HANDSHAKE_TIMEOUT_S = 10.0
"""Seconds from the first byte to the end of the handshake; after that the connection is closed."""
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
    """Which connections are accepted: `disabled` only those without TLS, `permissive` both kinds, `enforcing`
    only those with TLS. Without a certificate `permissive` means `disabled`."""
    certificate: Annotated[str, Setting("tls.server.certPath")] = ""
    """PEM file: the server's certificate, with intermediates. This file and the other ones are read again
    when they change."""
    key: Annotated[str, Setting("tls.server.keyPath")] = ""
    """PEM file: the key of the server's certificate."""
    password: Annotated[str, Setting("tls.server.keyPassword", secret=True)] = ""
    """Password of the server's key, if it is encrypted; never shown."""
    client_auth: Annotated[str, Setting("tls.server.need.client.auth", choices=CLIENT_AUTH)] = "none"
    """Whether clients are asked for a certificate. A certificate that a client presents is always checked."""
    authority: Annotated[str, Setting("tls.server.trustCertPath")] = ""
    """PEM file: the authorities that sign the certificates of clients."""
    enable: Annotated[bool, Setting("tls.enable")] = False
    """Whether connections to others (NameServers, members of the group for clients) use TLS."""
    own_certificate: Annotated[str, Setting("tls.client.certPath")] = ""
    """PEM file: the certificate presented to other servers if they ask for one."""
    own_key: Annotated[str, Setting("tls.client.keyPath")] = ""
    """PEM file: the key of that certificate."""
    own_password: Annotated[str, Setting("tls.client.keyPassword", secret=True)] = ""
    """Password of that key, if it is encrypted; never shown."""
    server_auth: Annotated[bool, Setting("tls.client.authServer")] = True
    """Whether certificates of other servers are checked; false in RocketMQ."""
    server_authority: Annotated[str, Setting("tls.client.trustCertPath")] = ""
    """PEM file: the authorities that sign the certificates of other servers; empty: those of the system."""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("tls.server.certPath and tls.server.keyPath must both be set, or neither")
        if self.mode == "enforcing" and not self.certificate:
            raise ValueError("tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath")
        if self.client_auth != "none" and not self.authority:
            raise ValueError("tls.server.need.client.auth needs tls.server.trustCertPath")

    @property
    def listens(self) -> bool:
        """Whether clients may connect with TLS."""
        return self.mode != "disabled" and bool(self.certificate)

    def server(self, log: Log) -> ServerTls | None:
        """The server side; None without TLS. ConfigError when a file is missing or cannot be used."""
        return ServerTls(self, log) if self.listens else None

    def client_context(self) -> ssl.SSLContext | None:
        """The context for connections to others; None without TLS. ConfigError when a file is missing or
        cannot be used."""
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
    """TLS of a client. Which dates, names and key sizes are accepted is OpenSSL's rule; TLS 1.2 at least."""

    ca: str = ""
    """PEM file: the authorities for the certificates of servers; empty: those of the system."""
    certificate: str = ""
    """PEM file: the client's own certificate, if servers ask for one."""
    key: str = ""
    """PEM file: the key of that certificate; empty: it is in the same file."""
    password: str = field(default="", repr=False)
    """Password of the key, if it is encrypted."""
    verify: bool = True
    """Whether servers' certificates are checked. False trusts every server."""
    check_hostname: bool = False
    """Whether a certificate must be made out to the host that was dialled. Off by default, because routes
    name brokers by address."""

    @classmethod
    def from_environment(cls) -> TlsOptions | None:
        """Options from ROCKETMQ_TLS_CA, ROCKETMQ_TLS_CERT and ROCKETMQ_TLS_KEY if ROCKETMQ_TLS is true;
        otherwise None. ValueError if ROCKETMQ_TLS has another value than true or false."""
        word = variable(ENABLE_VARIABLE).lower()
        if word not in ("", "true", "false"):
            raise ValueError(f"{ENABLE_VARIABLE}={word}: expected true or false")
        if word != "true":
            return None
        ca, certificate, key = (variable(name) for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE))
        return cls(ca, certificate, key)

    def context(self) -> ssl.SSLContext:
        """Make the context for connections. An OSError (also one of OpenSSL) names a file that cannot be
        used."""
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
    """The TLS context of a server. Changed files apply to the next connection (`refresh`)."""

    def __init__(self, settings: TlsSettings, log: Log) -> None:
        """Read the files; ConfigError when one is missing or cannot be used."""
        self._settings = settings
        self.enforcing: bool = settings.mode == "enforcing"
        self.on_refused: Callable[[str], None] = lambda reason: None
        """Called with the reason of a failed handshake, which asyncio does not report."""
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
        """Call before a handshake: read changed files again, at loop time `now_s`. If they cannot be used
        (half written ...), nothing changes. An authority that was removed stays trusted until the next
        start."""
        if now_s - self._looked >= REFRESH_INTERVAL_S:
            self._looked = now_s
            self._read.refresh(self._load_again)

    def reload(self) -> str:
        """Read the files again. Return the reason if they cannot be used, else an empty text."""
        return self._read.read_again(self._load_again)

    def _load_again(self) -> None:
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # key and certificate fit, or this raises
        self._load(self.context)
