"""Options for clusters with accounts and TLS. Secrets are no options, because Spark shows options in plans
and logs: an option names the file or the environment variable that holds the secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dledger.client import ClientOptions, Credentials, TlsOptions
from dledger.runtime.atomic_file import read_file
from dledger.runtime.environment_variables import variable
from dledger.runtime.remote_files import files_for
from dledger.spark import option_values as values
from dledger.spark.option_values import BadOption

OPTIONS = {
    "accessKey": "account of the brokers (accessKey); default: ROCKETMQ_ACCESS_KEY, if it is set",
    "secretKeyEnv": "environment variable with the account's secret key, on the driver and on all executors",
    "secretKeyFile": "file with the account's secret key, under this path on the driver and on all executors",
    "tls": "true: connections use TLS; default: as ROCKETMQ_TLS says",
    "tlsCa": "PEM file with the authorities of the servers' certificates; default: those of the system",
    "tlsCertificate": "PEM file with the client's own certificate",
    "tlsKey": "PEM file with the key of tlsCertificate, if it is not in the same file",
}
"""Maps the name of an option to its meaning."""
NO_SECRET = (
    "Spark shows options in plans and logs: put the secret into a file or an environment variable, and name "
    "it with secretKeyFile or secretKeyEnv"
)
REFUSED = {"secretKey": NO_SECRET, "rocketmq.secretKey": NO_SECRET}
"""Options that are refused, each with the reason and what to do instead."""


@dataclass(frozen=True)
class Access:
    """Account and TLS of a cluster. It names secrets and does not contain them, so it may be sent to
    executors. Without options, everything comes from the environment, as for all clients."""

    access_key: str = ""
    secret_env: str = ""
    secret_file: str = ""
    tls: TlsOptions | None = None
    tls_given: bool = False

    def client(self) -> ClientOptions:
        """Return the options of a client of this cluster. Reads the secret. Raises BadOption."""
        options = ClientOptions(tls=self.tls) if self.tls_given else ClientOptions()
        if not self.access_key:
            return options
        return replace(options, credentials=Credentials(self.access_key, self._secret()))

    def _secret(self) -> str:
        if self.secret_env:
            found = variable(self.secret_env)
            where = f"secretKeyEnv: the environment variable {self.secret_env} is not set"
        else:
            data = read_file(files_for(self.secret_file), self.secret_file)
            found = "" if data is None else data.decode("utf-8", "replace").strip()
            where = f"secretKeyFile: {self.secret_file} does not exist or is empty"
        if not found:
            raise BadOption(f"option {where} in this process: driver and executors need it")
        return found


NO_ACCESS = Access()


def access_of(given: Mapping[str, str]) -> Access:
    """Return the access that these options describe. Raises BadOption for options that contradict each
    other."""
    names = ("accessKey", "secretKeyEnv", "secretKeyFile")
    key, env, file = (given.get(name, "").strip() for name in names)
    if (bool(key), bool(env) + bool(file)) not in ((False, 0), (True, 1)):
        raise BadOption(
            "options accessKey, secretKeyEnv, secretKeyFile: give accessKey, and one of the other two"
        )
    files = {name: given[name].strip() for name in ("tlsCa", "tlsCertificate", "tlsKey") if name in given}
    wanted = values.flag("tls", given["tls"]) if "tls" in given else bool(files)
    if files and not wanted:
        raise BadOption(f"option {next(iter(files))} has no effect without tls: set tls to true")
    tls = None
    if wanted:
        tls = TlsOptions(files.get("tlsCa", ""), files.get("tlsCertificate", ""), files.get("tlsKey", ""))
    return Access(key, env, file, tls, "tls" in given or wanted)
