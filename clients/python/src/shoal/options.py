"""Where the server is, and how the client talks to it."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .errors import InvalidError

#: The port of a server whose address names none.
DEFAULT_PORT = 7411

#: A bearer token, or what gives the one of now (it is asked for each attempt of a call).
Token = str | Callable[[], str]


@dataclass(frozen=True)
class Tls:
    """Encrypts the connection and proves who the server is. All fields are PEM texts.

    `ca`: who may vouch for the server; `None`: the authorities that grpc trusts. `cert` with `key`: who the client is, for a
    server with `--tls-client-ca`. `server_name`: the name in the server's certificate, where it is not the host of its address.
    """

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None
    server_name: str | None = None

    @staticmethod
    def from_files(
        *,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
    ) -> Tls:
        """The same from the names of PEM files."""

        def read(name: str | os.PathLike[str] | None) -> bytes | None:
            return None if name is None else Path(name).read_bytes()

        return Tls(read(ca), read(cert), read(key), server_name)

    def __repr__(self) -> str:
        """Without the key."""
        return f"Tls(ca={self.ca is not None}, cert={self.cert is not None}, server_name={self.server_name!r})"


@dataclass(frozen=True, repr=False)
class Options:
    """The options of a client, checked."""

    server: str
    bucket: str = ""
    tls: Tls | None = None
    token: Token | None = None
    token_without_tls: bool = False
    once: bool = True
    attempts: int = 6
    connect_timeout: float = 5.0
    answer_timeout: float = 60.0

    def checked(self) -> Options:
        """The same with the server as "host:port" and with TLS where the address says https."""
        host, port, scheme = _address(self.server)
        tls = self.tls
        if scheme == "https" and tls is None:
            tls = Tls()
        if scheme == "http" and tls is not None:
            raise InvalidError(f"server address {self.server!r}: http:// has no TLS")
        if tls is not None and (tls.cert is None) != (tls.key is None):
            raise InvalidError("tls: a certificate and its key belong together")
        if self.token is not None and tls is None and not self.token_without_tls and not _is_loopback(host):
            raise InvalidError(
                "a token would travel to another machine unencrypted: use TLS, or say token_without_tls=True"
            )
        if self.attempts < 1:
            raise InvalidError("attempts: at least 1")
        if self.connect_timeout <= 0 or self.answer_timeout <= 0:
            raise InvalidError("timeouts: more than 0 seconds")
        name = f"[{host}]" if ":" in host else host
        return Options(
            f"{name}:{port}",
            self.bucket,
            tls,
            self.token,
            self.token_without_tls,
            self.once,
            self.attempts,
            self.connect_timeout,
            self.answer_timeout,
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every request has with it."""
        if self.token is None:
            return ()
        token = self.token if isinstance(self.token, str) else self.token()
        token = token.strip()
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidError("token: one line of printable ASCII")
        return (("authorization", f"Bearer {token}"),)

    def channel(self) -> list[tuple[str, int | str]]:
        """The settings of a grpc channel."""
        # Longest message either way: a value of 4 MiB with everything around it, as the server's.
        message = (4 << 20) + (256 << 10)
        settings: list[tuple[str, int | str]] = [
            ("grpc.max_send_message_length", message),
            ("grpc.max_receive_message_length", message),
            # A peer that does not answer pings for so long is gone.
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            # The pauses are ours: a server that is back must be found by the next attempt, not after two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.min_reconnect_backoff_ms", max(1, int(self.connect_timeout * 1000))),
            # This package decides what is sent again: a service config from the DNS does not know of request ids.
            ("grpc.service_config_disable_resolution", 1),
            # Clients of one program share nothing, so that closing one is that.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if _is_loopback(_address(self.server)[0]):
            # A proxy of the environment (http_proxy) does not lead to this machine.
            settings.append(("grpc.enable_http_proxy", 0))
        if self.tls is not None and self.tls.server_name is not None:
            settings.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return settings


def _address(server: str) -> tuple[str, int, str]:
    """Host, port and scheme (empty where there is none)."""

    def invalid(why: str) -> InvalidError:
        return InvalidError(f"server address {server!r}: {why}")

    text = server.strip()
    scheme, _, rest = text.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise invalid("the scheme must be http or https")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise invalid(str(error)) from error
    if not host or parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise invalid("expected host:port, as 127.0.0.1:7411")
    if any(character.isspace() for character in rest) or parts.netloc.endswith(":"):
        raise invalid("expected host:port, as 127.0.0.1:7411")
    return host, DEFAULT_PORT if port is None else port, scheme


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
