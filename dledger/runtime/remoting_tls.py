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
"""Largest time, in seconds, for which a change of a file may remain unnoticed before the next handshake."""
HANDSHAKE_TIMEOUT_S = 10.0
"""Time-out, in seconds, from the first byte to the end of the handshake; after it the connection is
closed."""
ENABLE_VARIABLE = "ROCKETMQ_TLS"
CA_VARIABLE = "ROCKETMQ_TLS_CA"
CERTIFICATE_VARIABLE = "ROCKETMQ_TLS_CERT"
KEY_VARIABLE = "ROCKETMQ_TLS_KEY"

MODES: Mapping[str, str] = MappingProxyType({mode: mode for mode in ("disabled", "permissive", "enforcing")})
CLIENT_AUTH: Mapping[str, str] = MappingProxyType({word: word for word in ("none", "optional", "require")})
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


@dataclass(frozen=True)
class TlsSettings:
    """TLS of a broker or a NameServer: as a server, and as a client of other servers."""

    mode: Annotated[str, Setting("tls.server.mode", choices=MODES, important=True)] = "permissive"
    """Which connections are accepted: `disabled` only those without TLS, `permissive` both kinds, `enforcing`
    only those with TLS. Without a certificate `permissive` means `disabled`."""
    certificate: Annotated[str, Setting("tls.server.certPath")] = ""
    """PEM file with the server's certificate and intermediate certificates. All PEM files are read again when
    they change."""
    key: Annotated[str, Setting("tls.server.keyPath")] = ""
    """PEM file with the key of the server's certificate."""
    password: Annotated[str, Setting("tls.server.keyPassword", secret=True)] = ""
    """Password of the server's key, if it is encrypted; never shown."""
    client_auth: Annotated[str, Setting("tls.server.need.client.auth", choices=CLIENT_AUTH)] = "none"
    """Whether clients are asked for a certificate. A certificate that a client presents is always checked."""
    authority: Annotated[str, Setting("tls.server.trustCertPath")] = ""
    """PEM file with the authorities that sign the certificates of clients."""
    enable: Annotated[bool, Setting("tls.enable")] = False
    """Whether connections to other servers use TLS: to NameServers, and to brokers of the group at the port
    for clients."""
    own_certificate: Annotated[str, Setting("tls.client.certPath")] = ""
    """PEM file with the certificate that is presented to other servers if they ask for one."""
    own_key: Annotated[str, Setting("tls.client.keyPath")] = ""
    """PEM file with the key of `tls.client.certPath`."""
    own_password: Annotated[str, Setting("tls.client.keyPassword", secret=True)] = ""
    """Password of the key in `tls.client.keyPath`, if it is encrypted; never shown."""
    server_auth: Annotated[bool, Setting("tls.client.authServer")] = True
    """Whether certificates of other servers are checked. In RocketMQ the default is false."""
    server_authority: Annotated[str, Setting("tls.client.trustCertPath")] = ""
    """PEM file with the authorities that sign the certificates of other servers. If it is empty, the
    authorities of the system are used."""

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
        """Return the TLS context of the server; None if there is no TLS. Raises ConfigError if a file is
        missing or cannot be used."""
        return ServerTls(self, log) if self.listens else None

    def client_context(self) -> ssl.SSLContext | None:
        """Return the context for connections to other servers; None if they do not use TLS. Raises
        ConfigError if a file is missing or cannot be used."""
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
    """TLS of a client. TLS 1.2 or later is required; OpenSSL decides which dates, names and key sizes are
    accepted."""

    ca: str = ""
    """PEM file with the authorities that sign the certificates of servers. If it is empty, the authorities of
    the system are used."""
    certificate: str = ""
    """PEM file with the client's own certificate, if servers ask for one."""
    key: str = ""
    """PEM file with the key of the client's certificate. If it is empty, the key is in the same file as the
    certificate."""
    password: str = field(default="", repr=False)
    """Password of the client's key, if the key is encrypted."""
    verify: bool = True
    """Whether the certificates of servers are checked. With False every server is trusted."""
    check_hostname: bool = False
    """Whether a server's certificate must name the host to which the client connects. Off by default, because
    routes name brokers by address."""

    @classmethod
    def from_environment(cls) -> TlsOptions | None:
        """Return options from ROCKETMQ_TLS_CA, ROCKETMQ_TLS_CERT and ROCKETMQ_TLS_KEY if ROCKETMQ_TLS is
        true; otherwise None. Raises ValueError if ROCKETMQ_TLS has another value than true or false."""
        word = variable(ENABLE_VARIABLE).lower()
        if word not in ("", "true", "false"):
            raise ValueError(f"{ENABLE_VARIABLE}={word}: expected true or false")
        if word != "true":
            return None
        ca, certificate, key = (variable(name) for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE))
        return cls(ca, certificate, key)

    def context(self) -> ssl.SSLContext:
        """Make the context for connections. Raises OSError (OpenSSL's errors are a kind of it), which names
        the file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        for path in filter(None, (self.ca, self.certificate, self.key)):
            open(path, "rb").close()  # an error names the file, as OpenSSL's errors do not
        if self.ca:
            context.load_verify_locations(self.ca)
        elif self.verify:
            context.load_default_certs()
        if self.certificate:
            # With an empty password OpenSSL would ask on the terminal.
            context.load_cert_chain(self.certificate, self.key or None, password=lambda: self.password)
        return context


class ServerTls:
    """The TLS context of a server. When files change, connections that come later use the new ones
    (`refresh`)."""

    def __init__(self, settings: TlsSettings, log: Log) -> None:
        """Read the files. Raises ConfigError if one is missing or cannot be used."""
        self._settings = settings
        self.enforcing: bool = settings.mode == "enforcing"
        self.on_refused: Callable[[str], None] = lambda reason: None
        """Called with the reason of a failed handshake, because asyncio does not report it."""
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
        """Read files again that have changed. Call this before a handshake, with the loop time `now_s`. If
        the files cannot be used (half written ...), nothing changes. An authority that was removed stays
        trusted until the next start."""
        if now_s - self._looked >= REFRESH_INTERVAL_S:
            self._looked = now_s
            self._read.refresh(self._load_again)

    def reload(self) -> str:
        """Read the files again. Return an empty text, or the reason why they cannot be used."""
        return self._read.read_again(self._load_again)

    def _load_again(self) -> None:
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # key and certificate fit, or this raises
        self._load(self.context)
