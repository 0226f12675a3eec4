"""Bound sockets and TLS of a server."""

import errno
import ipaddress
import socket
import ssl
from typing import Any, NoReturn

from holdfast.model.errors import InvalidArgument, Unavailable
from holdfast.server.settings import Settings

# Errors of `bind` for an address that this machine does not have. A host name may have several addresses, of which one
# has to work.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listening_sockets(settings: Settings, *, is_shared: bool = False) -> list[socket.socket]:
    """Return bound sockets, one for each address of the host. They do not listen yet.

    `is_shared`: other processes may bind the same address. Raise `Unavailable` if the port is in use, and
    `InvalidArgument` for an unknown host, or one that other machines can reach while no identities are configured.
    """
    addresses = _addresses(settings.host, settings.port)
    if not settings.has_identities:
        _check_loopback(settings.host, [address[0] for _, address in addresses])
    sockets: list[socket.socket] = []
    port = settings.port
    failure: OSError | None = None
    for family, address in addresses:
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                # Each address has its own socket.
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((address[0], port, *address[2:]))
        except OSError as error:
            bound.close()
            failure = error
            if error.errno in _NOT_HERE:
                continue
            _close(sockets)
            raise_bind_error(settings.host, port, error)
        sockets.append(bound)
        port = bound.getsockname()[1]  # port 0 gives a free port; the other addresses use the same one
    if not sockets and failure is not None:
        raise_bind_error(settings.host, port, failure)
    return sockets


def raise_bind_error(host: str, port: int, error: OSError) -> NoReturn:
    """Raise `Unavailable` for a port in use, and `InvalidArgument` for any other failure to bind or listen."""
    if error.errno == errno.EADDRINUSE:
        raise Unavailable(
            f"port {port} of {host} is in use by another program: stop it, or give another --port (0: any free one)"
        ) from None
    setting = "port" if error.errno == errno.EACCES else "host"
    raise InvalidArgument(
        f"{setting}: {host}:{port} cannot be listened on: {error.strerror}", setting=setting
    ) from None


def url_of(sockets: list[socket.socket], settings: Settings) -> str:
    """Return the URL of an HTTP port, with the configured host."""
    port = sockets[0].getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def make_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context; None without a certificate. Raise `InvalidArgument` for an unusable file."""
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _check_readable("tls_cert", settings.tls_cert)
    if settings.tls_key is not None:
        _check_readable("tls_key", settings.tls_key)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_refuse_encrypted)
    except ssl.SSLError as error:
        key = settings.tls_key or settings.tls_cert
        raise InvalidArgument(
            f"tls_cert {settings.tls_cert!r} and its key in {key!r} are not a certificate and its key, in PEM and not "
            f"encrypted: {error.reason or 'no certificate found'}",
            setting="tls_cert",
        ) from None
    if settings.tls_client_ca is not None:
        _check_readable("tls_client_ca", settings.tls_client_ca)
        try:
            context.load_verify_locations(cafile=settings.tls_client_ca)
        except ssl.SSLError as error:
            raise InvalidArgument(
                f"tls_client_ca {settings.tls_client_ca!r} holds no certificates in PEM: {error.reason or error}",
                setting="tls_client_ca",
            ) from None
        # Callers with a token, and scrapers, need no certificate. A certificate that is presented must still be valid.
        is_optional = settings.has_tokens or settings.has_scrapers
        context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED
    return context


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise InvalidArgument(f"host {host!r} is not a name or an address that can be found", setting="host") from None
    # Without duplicates, in order.
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _check_loopback(host: str, addresses: list[str]) -> None:
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        return
    raise InvalidArgument(
        f"host {host!r} can be reached from other machines, and no identities are configured, so anyone there "
        "could do everything: set jwt_secret or jwt_keys (tokens), or tls_cert, tls_client_ca and mtls_tenants "
        "(certificates), or listen on 127.0.0.1",
        setting="host",
    )


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InvalidArgument(f"{name} {path!r} cannot be read: {error.strerror}", setting=name) from None


def _refuse_encrypted() -> str:
    # OpenSSL calls this for an encrypted key. Without it, it would ask on the terminal.
    return ""


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()
