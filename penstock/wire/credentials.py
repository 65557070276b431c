"""Credentials keep strangers from a job's tasks, by mutual TLS and a token that the job's members share.

A job has one directory of credentials, the same on each of its machines:

    ca.pem     the job's own certificate authority: a peer's certificate must be signed by it
    task.pem   the certificate that every task and client of the job shows, whether it listens or connects
    task.key   its private key (mode 0600)
    token      a secret that a peer sends after the handshake (mode 0600)

The authority's private key is not kept. All members of a job show one certificate, so nothing more has to be issued,
and a key that is stored nowhere cannot be stolen. To renew credentials, make new ones.

All members have one certificate, so TLS checks the fixed name `SERVER_NAME` and no address: tasks may move between
machines. The hosts in the certificate are for other programs that check names, such as grpcurl.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     credentials = create_credentials(os.path.join(folder, "job"))
>>> credentials.token_matches(credentials.token), credentials.token_matches(b"guess")
(True, False)
"""

from __future__ import annotations

import contextlib
import datetime
import hmac
import ipaddress
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import errors, logging

# ssl, grpc and cryptography are imported where they are used, since most programs have no credentials.
if TYPE_CHECKING:
    import ssl

SERVER_NAME = "penstock"
"""TLS checks this name: `client_context().wrap_socket(sock, server_hostname=SERVER_NAME)`."""

TOKEN_METADATA = "penstock-token"
"""A gRPC call has the token under this key of its metadata."""

ENVIRONMENT_VARIABLE = "PENSTOCK_CREDENTIALS"

_CA, _CERTIFICATE, _KEY, _TOKEN = "ca.pem", "task.pem", "task.key", "token"
_SECRET = (_KEY, _TOKEN)
_LARGEST_FILE = 1 << 16
_TOKEN_BYTES = 32
# A token of another origin needs 32 characters, which is 128 bits in hexadecimal digits. It travels as the value of an
# HTTP header, which limits the characters.
_TOKEN_FORM = re.compile(rb"[!-~]{32,1024}")
_HOST_FORM = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_-]{1,63})*\Z")
_RENEW = "Make new ones with `penstock credentials create DIR` and copy that directory to each machine of the job."


@dataclass(frozen=True)
class Credentials:
    """Holds a job's credentials, read and checked: `Credentials.load("/etc/my_job")`.

    With them a peer proves that it belongs to this job; members are not told apart.
    """

    directory: Path
    ca: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    token: bytes = field(repr=False)
    _server_context: ssl.SSLContext = field(repr=False, compare=False)
    _client_context: ssl.SSLContext = field(repr=False, compare=False)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Credentials:
        """Reads a directory that `create_credentials` wrote. It refuses at once what would fail with every peer.

        >>> try:
        ...     Credentials.load("/no/such/place")
        ... except errors.NotFoundError as error:
        ...     print(error.message.partition(".")[0])
        There are no credentials in '/no/such/place': it does not exist
        """
        folder = Path(directory).expanduser().absolute()
        if not folder.is_dir():
            what = "is not a directory" if folder.exists() else "does not exist"
            raise errors.NotFoundError(f"There are no credentials in '{folder}': it {what}. {_RENEW}")
        ca, certificate, key, token = (_read(folder / name) for name in (_CA, _CERTIFICATE, _KEY, _TOKEN))
        token = token.strip()
        if not _TOKEN_FORM.fullmatch(token):
            raise errors.InvalidArgumentError(
                f"The token in '{folder / _TOKEN}' must be 32 to 1024 printable ASCII characters without spaces, "
                f"received {len(token)} bytes. {_RENEW}"
            )
        server, client = _contexts(folder, ca)
        return cls(folder, ca, certificate, key, token, server, client)

    @classmethod
    def from_environment(cls) -> Credentials | None:
        """Loads the directory that PENSTOCK_CREDENTIALS names. Returns None if the variable is not set or empty."""
        directory = os.environ.get(ENVIRONMENT_VARIABLE)
        if not directory:
            return None
        try:
            return cls.load(directory)
        except errors.OpError as error:
            raise type(error)(f"{error.message} (The directory is from {ENVIRONMENT_VARIABLE}.)") from error

    def server_context(self) -> ssl.SSLContext:
        """Returns the context of a socket that listens: TLS 1.3, and the peer must show a certificate of this job.

        In TLS 1.3 a client completes the handshake before the server checks its certificate, so a client that is
        refused learns it from its first read.
        """
        return self._server_context

    def client_context(self) -> ssl.SSLContext:
        """Returns the context to connect with: `client_context().wrap_socket(sock, server_hostname=SERVER_NAME)`."""
        return self._client_context

    def grpc_server_credentials(self) -> Any:
        """Returns credentials for `grpc.Server.add_secure_port`: clients must show a certificate of this job."""
        import grpc  # start-up

        return grpc.ssl_server_credentials([(self.key, self.certificate)], self.ca, require_client_auth=True)

    def grpc_channel_credentials(self) -> Any:
        """Returns credentials for `grpc.secure_channel(address, these, options=credentials.grpc_channel_options())`."""
        import grpc  # start-up

        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)

    def grpc_channel_options(self) -> list[tuple[str, str]]:
        """Returns the options with which gRPC checks `SERVER_NAME` in place of the address."""
        return [("grpc.ssl_target_name_override", SERVER_NAME)]

    def grpc_metadata(self) -> list[tuple[str, str]]:
        """Returns the metadata of a call: `stub(request, metadata=credentials.grpc_metadata(), timeout=5)`."""
        return [(TOKEN_METADATA, self.token.decode("ascii"))]

    def token_matches(self, received: bytes | str) -> bool:
        """Tells if a peer sent the job's token. The comparison takes the same time wherever the first difference is."""
        given = received.encode("utf-8", "replace") if isinstance(received, str) else received
        return hmac.compare_digest(self.token, given)

    def valid_until(self) -> datetime.datetime:
        """Returns when the job's certificates end. After that nobody can connect; open connections stay."""
        from penstock.wire import certificates  # start-up

        return min(certificates.valid_until(self.ca), certificates.valid_until(self.certificate))


def create_credentials(directory: str | os.PathLike[str], hosts: Iterable[str] = (), days: int = 365) -> Credentials:
    """Makes a job's credentials and writes them to `directory`, which must be new or empty.

    The certificate is valid for `hosts` (names and addresses) besides localhost; penstock itself needs none.
    The directory appears complete or not at all: `create_credentials("/etc/my_job", hosts=["ps0.example.org"])`.
    """
    if not 1 <= days <= 36500:
        raise errors.InvalidArgumentError(f"days must be 1 to 36500, received {days}.")
    names = _host_names(hosts)
    target = Path(directory).expanduser().resolve()
    _refuse_existing(target)
    # The import is slow, so arguments are checked before it.
    from penstock.wire import certificates  # start-up

    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    # The certificates are valid since yesterday, since clocks of machines differ.
    ca, certificate, key = certificates.issue(names, now - day, now + days * day)
    token = secrets.token_hex(_TOKEN_BYTES).encode("ascii") + b"\n"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The files are written beside the target, with mode 0700, so that one rename puts all in place.
        aside = tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            for name, content in ((_CA, ca), (_CERTIFICATE, certificate), (_KEY, key), (_TOKEN, token)):
                _write(os.path.join(aside, name), content, 0o600 if name in _SECRET else 0o644)
            # The rename replaces an empty directory and fails on any other, so a race overwrites nothing.
            os.rename(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        _refuse_existing(target)
        cls = errors.PermissionDeniedError if isinstance(error, PermissionError) else errors.FailedPreconditionError
        raise cls(
            None,
            None,
            f"Credentials cannot be written to '{target}': {error.strerror or error}. Give a new directory below "
            "one in which you may write.",
        ) from error
    return Credentials.load(target)


def is_loopback(host: str) -> bool:
    """Tells if only this machine reaches `host`. A name must resolve, and to loopback addresses only.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, False, False)
    """
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if host.lower() == "localhost":
        return True
    if not host:
        return False
    try:
        return _is_loopback_address(host)
    except ValueError:
        pass  # `host` is a name
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
        return bool(found) and all(_is_loopback_address(address) for address in found)
    except (OSError, ValueError):  # the name is unknown or malformed
        return False


def require_safe(address: str, credentials: Credentials | None, insecure: bool) -> None:
    """Raises PermissionDeniedError if peers on the network could use `address` without proving who they are.

    >>> require_safe("localhost:2222", None, insecure=False)
    >>> require_safe("0.0.0.0:2222", None, insecure=True)
    """
    if credentials is not None or insecure or is_loopback(_host_of(address)):
        return
    raise errors.PermissionDeniedError(
        f"The address '{address}' is reached from other machines, and there are no credentials: whoever can connect "
        "could run graphs in this job and read its variables. Do one of these: use a loopback address such as "
        "'localhost:2222' if all tasks are on this machine; make credentials with `penstock credentials create DIR` "
        f"and set {ENVIRONMENT_VARIABLE}=DIR for every task; or pass insecure=True if everybody on this network is "
        "trusted."
    )


class RefusalLog:
    """Logs once that a peer was refused, and why. It counts repetitions, so that nobody can fill the log.

    >>> log = RefusalLog()
    >>> log.refused("10.0.0.7:40112", "its token is wrong")    # logs a warning
    >>> log.refused("10.0.0.7:40113", "its token is wrong")    # does not
    >>> log.total
    2
    """

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._counts: dict[tuple[str, str], int] = {}
        self._others = 0
        self._lock = threading.Lock()

    def refused(self, peer: str, why: str) -> None:
        """Notes that `peer` ('host:port', or as gRPC names it) was refused because of `why`."""
        host, reason = self._key(peer, why)
        with self._lock:
            before = self._counts.get((host, reason), 0)
            full = not before and len(self._counts) >= self._most
            if full:
                # If it forgot the oldest instead, a peer with many addresses could log without end.
                self._others += 1
                first = self._others == 1
            else:
                self._counts[host, reason] = before + 1
                first = not before
        if first and full:
            logging.warning("Refused peers in more than %d ways: further ones are counted, not logged.", self._most)
        elif first:
            logging.warning(
                "Refused a peer at %s: %s. If it happens again it is counted, not logged.", host, reason.rstrip(".")
            )

    @property
    def total(self) -> int:
        """The number of refusals so far."""
        with self._lock:
            return sum(self._counts.values()) + self._others

    def count(self, peer: str, why: str) -> int:
        """Returns how often a peer of this host was refused for this reason."""
        with self._lock:
            return self._counts.get(self._key(peer, why), 0)

    @staticmethod
    def _key(peer: str, why: str) -> tuple[str, str]:
        # Both may hold text that the peer sent: it must not break lines in the log, or fill it.
        return ascii(_host_of(peer) or "an unknown address")[1:-1][:200], ascii(why)[1:-1][:200]


def _host_of(address: str) -> str:
    """Returns the host of 'host:port', '[::1]:port', 'grpc://host:port' or gRPC's name of a peer ('ipv4:host:port')."""
    text = address.removeprefix("grpc://").removeprefix("ipv4:").removeprefix("ipv6:")
    text = text.replace("%5B", "[").replace("%5D", "]")
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    # Two colons without brackets are an IPv6 address without a port. Any other form stays whole, and is then no
    # loopback address.
    if colon and port.isdecimal() and (bracketed or ":" not in host):
        text = host
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _is_loopback_address(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _host_names(hosts: Iterable[str]) -> list[str]:
    given = [hosts] if isinstance(hosts, str) else list(hosts)
    for host in given:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if not _HOST_FORM.match(host):
                raise errors.InvalidArgumentError(
                    f"A host must be a name such as 'ps0.example.org' or an IP address, without a port, "
                    f"received {host!r}."
                ) from None
    return list(dict.fromkeys([SERVER_NAME, "localhost", "127.0.0.1", "::1", *given]))


def _refuse_existing(target: Path) -> None:
    try:
        used = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError:
        return  # the error of writing there says more
    if used:
        raise errors.AlreadyExistsError(
            f"'{target}' exists and is not an empty directory. Credentials are not overwritten, since tasks may be "
            "using them: give a new directory, or remove this one first if nothing needs it."
        )


def _write(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # the umask must not change it
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _read(path: Path) -> bytes:
    """Returns the content of a file of the credentials. Refuses it if others may change it, or read a secret."""
    try:
        # Non-blocking, since opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise errors.NotFoundError(f"The credentials lack the file '{path}'. {_RENEW}") from None
    except OSError as error:
        raise errors.PermissionDeniedError(
            f"The file '{path}' of the credentials cannot be opened: {error.strerror or error}. It must belong to the "
            "user who runs the task."
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= _LARGEST_FILE:
            raise errors.InvalidArgumentError(
                f"'{path}' must be a file of 1 to {_LARGEST_FILE} bytes, received {status.st_size}. {_RENEW}"
            )
        refused = 0o077 if path.name in _SECRET else 0o022
        if status.st_uid == 0 and os.geteuid() != 0:
            # Root has mounted it, as Kubernetes does, and a group lets this user read it.
            refused &= ~0o040
        if status.st_mode & refused:
            mode = "600" if path.name in _SECRET else "644"
            raise errors.PermissionDeniedError(
                f"Other users may read or change '{path}': its mode is {stat.S_IMODE(status.st_mode):04o}. "
                f"Run `chmod {mode} {path}`, and make new credentials if others had access to the machine."
            )
        return os.read(descriptor, _LARGEST_FILE)
    finally:
        os.close(descriptor)


def _contexts(folder: Path, ca: bytes) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns the contexts of both sides, after a handshake between them that finds what would fail with every peer."""
    import ssl  # start-up

    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        for context in (server, client):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=ca.decode("ascii"))
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(folder / _CERTIFICATE, folder / _KEY, password="")
        # A resumed TLS session would not check the peer's certificate again.
        server.num_tickets = 0
        _shake_hands(server, client)
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
        raise errors.UnauthenticatedError(f"The certificates in '{folder}' cannot be used: {why}. {_RENEW}") from error
    return server, client


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    import ssl  # start-up

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=SERVER_NAME),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    # In the first round each side sends its messages and waits for the other's; the second round completes it.
    for end in ends:
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    for end in ends:
        end.do_handshake()
