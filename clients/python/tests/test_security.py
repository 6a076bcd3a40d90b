"""TLS and tokens against a real server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trustme

import shoal

from .conftest import Connect, _folder
from .harness import Server, serve_knows

pytestmark = pytest.mark.skipif(not serve_knows("--tls-cert"), reason="this server has no TLS")

TOKEN = "a-token-of-enough-characters"


@pytest.fixture
def authority() -> trustme.CA:
    """Vouches for the server and for clients."""
    return trustme.CA()


def server_options(authority: trustme.CA, folder: Path) -> list[str]:
    """The options of a server with a certificate for localhost."""
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(folder / "cert.pem", append=True)
    os.chmod(folder / "key.pem", 0o600)
    return ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]


def test_tls_and_a_token(connect: Connect, authority: trustme.CA) -> None:
    folder = _folder()
    tokens = folder / "tokens"
    tokens.write_text(TOKEN + "\n")
    tokens.chmod(0o600)
    server = Server(folder, *server_options(authority, folder), "--token-file", str(tokens))
    try:
        tls = shoal.Tls(ca=authority.cert_pem.bytes())
        client = connect(f"https://{server.address}", tls=tls, token=tokens.read_text)
        client.put("k", bytes(3 << 20))
        found = client.get("k")
        assert found is not None
        assert found.info.size == 3 << 20
        for token in (None, "another-token-of-some-length"):
            stranger = connect(server.address, tls=tls, token=token, attempts=2)
            for call in (stranger.get, stranger.head, stranger.delete, stranger.get_stream):
                with pytest.raises(shoal.DeniedError):
                    call("k")
            with pytest.raises(shoal.DeniedError):
                stranger.put("k", bytes(2 << 20))
        with pytest.raises((shoal.UnavailableError, shoal.UnknownOutcomeError)):
            connect(server.address, attempts=1, connect_timeout=2, answer_timeout=5).put("k", b"")
    finally:
        server.remove()


def test_mutual_tls(connect: Connect, authority: trustme.CA) -> None:
    folder = _folder()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server = Server(folder, *server_options(authority, folder), "--tls-client-ca", str(folder / "ca.pem"))
    try:
        mine = authority.issue_cert("me@example.org")
        mine.private_key_pem.write_to_path(folder / "me.key")
        mine.cert_chain_pems[0].write_to_path(folder / "me.pem")
        tls = shoal.Tls.from_files(ca=folder / "ca.pem", cert=folder / "me.pem", key=folder / "me.key")
        client = connect(server.address, tls=tls)
        client.put("k", b"v")
        assert client.get("k") is not None
        stranger = trustme.CA().issue_cert("me@example.org")
        wrong = shoal.Tls(
            ca=authority.cert_pem.bytes(),
            cert=stranger.cert_chain_pems[0].bytes(),
            key=stranger.private_key_pem.bytes(),
        )
        for other in (shoal.Tls(ca=authority.cert_pem.bytes()), wrong):
            with pytest.raises((shoal.UnavailableError, shoal.DeniedError)):
                connect(server.address, tls=other, attempts=2, connect_timeout=2, answer_timeout=5).get("k")
    finally:
        server.remove()
