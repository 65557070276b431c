"""Credentials: which peers are accepted, which are refused, and the form of a directory."""

import datetime
import logging as std_logging
import os
import re
import shutil
import socket
import ssl
import stat
import threading
import time
from concurrent import futures

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from penstock import errors
from penstock.wire import certificates
from penstock.wire.credentials import (
    SERVER_NAME,
    TOKEN_METADATA,
    Credentials,
    RefusalLog,
    create_credentials,
    is_loopback,
    require_safe,
)

DEADLINE = 60
DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + DEADLINE
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return create_credentials(tmp_path_factory.mktemp("job") / "a", hosts=["ps0.example.org", "10.0.0.7"])


@pytest.fixture(scope="module")
def other_job(tmp_path_factory):
    return create_credentials(tmp_path_factory.mktemp("job") / "b")


@pytest.fixture
def copy(job, tmp_path):
    return shutil.copytree(job.directory, tmp_path / "copy")


def write_pair(folder, *, begins, ends, names=(SERVER_NAME,)):
    ca, certificate, key = certificates.issue(list(names), begins, ends)
    for name, content in (("ca.pem", ca), ("task.pem", certificate), ("task.key", key)):
        (folder / name).write_bytes(content)
    return folder


# Writing.


def test_files_and_modes(tmp_path):
    old = os.umask(0)  # the modes do not depend on it
    try:
        made = create_credentials(tmp_path / "new" / "job")
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.directory.iterdir()}
    assert modes == {"ca.pem": 0o644, "task.pem": 0o644, "task.key": 0o600, "token": 0o600}
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o700
    assert re.fullmatch(rb"[0-9a-f]{64}", made.token)
    assert os.listdir(made.directory.parent) == ["job"]  # nothing is left beside it
    assert Credentials.load(made.directory) == made
    assert made.token.decode() not in repr(made) and "PRIVATE" not in repr(made)
    assert abs(made.valid_until() - datetime.datetime.now(datetime.UTC) - 365 * DAY) < DAY / 24


def test_the_certificate_names_the_hosts(job):
    certificate = x509.load_pem_x509_certificate(job.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [
        *("penstock", "localhost", "127.0.0.1", "::1"),
        *("ps0.example.org", "10.0.0.7"),
    ]


def test_an_empty_directory_is_filled_and_closed_to_others(tmp_path):
    (tmp_path / "job").mkdir(mode=0o755)
    made = create_credentials(tmp_path / "job")
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("there", ["directory", "file"])
def test_nothing_is_overwritten(tmp_path, there):
    target = tmp_path / "job"
    if there == "directory":
        target.mkdir()
        (target / "note").write_text("mine")
    else:
        target.write_text("mine")
    with pytest.raises(errors.AlreadyExistsError, match="give a new directory, or remove this one first"):
        create_credentials(target)
    assert os.listdir(tmp_path) == ["job"]
    assert (target / "note" if there == "directory" else target).read_text() == "mine"


def test_a_file_in_the_way_of_the_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.FailedPreconditionError, match=r"cannot be written to '.*/file/job'"):
        create_credentials(tmp_path / "file" / "job")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"days": 0}, "days must be 1 to 36500, received 0"),
        ({"days": 10**6}, "days must be"),
        ({"hosts": ["ps0:2222"]}, "without a port, received 'ps0:2222'"),
        ({"hosts": [""]}, "A host must be a name"),
        ({"hosts": ["a b"]}, "A host must be a name"),
        ({"hosts": ["bücher.example"]}, "A host must be a name"),
    ],
)
def test_bad_arguments(tmp_path, arguments, says):
    with pytest.raises(errors.InvalidArgumentError, match=says):
        create_credentials(tmp_path / "job", **arguments)
    assert not os.listdir(tmp_path)


# Reading.


@pytest.mark.parametrize("name", ["task.key", "token"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_may_read_is_refused(copy, name, mode):
    (copy / name).chmod(mode)
    with pytest.raises(errors.PermissionDeniedError, match=f"mode is {mode:04o}. Run `chmod 600 {copy / name}`"):
        Credentials.load(copy)
    (copy / name).chmod(0o400)
    Credentials.load(copy)


def test_an_authority_that_others_may_change_is_refused(copy):
    (copy / "ca.pem").chmod(0o666)
    with pytest.raises(errors.PermissionDeniedError, match=f"Run `chmod 644 {copy / 'ca.pem'}`"):
        Credentials.load(copy)


def test_secrets_that_root_mounted_for_our_group_are_taken(copy, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("needs files of root")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name in ("task.key", "token"):
        (copy / name).chmod(0o440)
    Credentials.load(copy)
    (copy / "token").chmod(0o444)
    with pytest.raises(errors.PermissionDeniedError):
        Credentials.load(copy)


@pytest.mark.parametrize("name", ["ca.pem", "task.pem", "task.key", "token"])
def test_what_is_missing_or_no_file_is_named(copy, name):
    path = copy / name
    path.unlink()
    with pytest.raises(errors.NotFoundError, match=f"{path}.*penstock credentials create"):
        Credentials.load(copy)
    os.mkfifo(path, 0o600)  # opening it must not wait
    with pytest.raises(errors.InvalidArgumentError, match=f"'{path}' must be a file"):
        Credentials.load(copy)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"short", "received 5 bytes"),
        (b"", "must be a file of 1 to"),
        (b"x" * 31 + b"\n", "received 31"),
        (b"x" * 40 + b"\ny", "printable"),
    ],
)
def test_a_token_that_is_too_short_or_malformed(copy, content, says):
    (copy / "token").write_bytes(content)
    with pytest.raises(errors.InvalidArgumentError, match=says) as caught:
        Credentials.load(copy)
    assert "xxxx" not in str(caught.value)  # a secret stays out of messages


@pytest.mark.parametrize("name", ["ca.pem", "task.pem", "task.key"])
@pytest.mark.parametrize(
    "content", [b"\x00\xff" * 50, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_damaged_certificates(copy, name, content):
    (copy / name).write_bytes(content)
    with pytest.raises(errors.UnauthenticatedError, match="cannot be used"):
        Credentials.load(copy)


def test_a_key_with_a_password_does_not_ask_for_it(copy):
    key = serialization.load_pem_private_key((copy / "task.key").read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    (copy / "task.key").write_bytes(locked)
    with pytest.raises(errors.UnauthenticatedError, match="cannot be used"):
        Credentials.load(copy)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ({"begins": NOW - 9 * DAY, "ends": NOW - DAY}, "certificate has expired"),
        ({"begins": NOW + DAY, "ends": NOW + 9 * DAY}, "certificate is not yet valid"),
        ({"begins": NOW - DAY, "ends": NOW + DAY, "names": ["another"]}, "not valid for 'penstock'"),
    ],
)
def test_certificates_that_no_peer_would_accept(copy, pair, says):
    with pytest.raises(errors.UnauthenticatedError, match=says):
        Credentials.load(write_pair(copy, **pair))


def test_files_of_two_jobs(copy, other_job):
    shutil.copy(other_job.directory / "task.key", copy)
    with pytest.raises(errors.UnauthenticatedError, match="KEY_VALUES_MISMATCH"):
        Credentials.load(copy)
    shutil.copy(other_job.directory / "task.pem", copy)
    with pytest.raises(errors.UnauthenticatedError, match=r"(?i)signature|unable to get local issuer"):
        Credentials.load(copy)


def test_from_environment(job, monkeypatch, tmp_path):
    monkeypatch.delenv("PENSTOCK_CREDENTIALS", raising=False)
    assert Credentials.from_environment() is None
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", "")
    assert Credentials.from_environment() is None
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(job.directory))
    assert Credentials.from_environment() == job
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(tmp_path / "none"))
    with pytest.raises(errors.NotFoundError, match=r"does not exist.*PENSTOCK_CREDENTIALS"):
        Credentials.from_environment()


# Handshakes on sockets.


def talk(server_context, client_context, name=SERVER_NAME):
    """What the server and the client received, or the error that each of them got."""

    def side(sock, context, says, **options):
        try:
            with context.wrap_socket(sock, **options) as wrapped:
                wrapped.sendall(says)
                return wrapped.recv(16), wrapped.version()
        except OSError as error:  # TLS's errors are subclasses
            return error

    ends = socket.socketpair()
    for end in ends:
        end.settimeout(DEADLINE)
    with ends[0], ends[1], futures.ThreadPoolExecutor(2) as pool:
        server = pool.submit(side, ends[0], server_context, b"from server", server_side=True)
        client = pool.submit(side, ends[1], client_context, b"from client", server_hostname=name)
        return server.result(2 * DEADLINE), client.result(2 * DEADLINE)


def anonymous(job):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=job.ca.decode())
    return context


def of_another_authority(job, other):
    context = anonymous(job)
    context.load_cert_chain(other.directory / "task.pem", other.directory / "task.key")
    return context


def old_protocol(job):
    context = of_another_authority(job, job)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def test_members_of_a_job_talk_in_tls_1_3(job):
    again = Credentials.load(job.directory)
    assert talk(job.server_context(), again.client_context()) == (
        (b"from client", "TLSv1.3"),
        (b"from server", "TLSv1.3"),
    )


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (lambda job, other: anonymous(job), "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (lambda job, other: of_another_authority(job, other), "CERTIFICATE_VERIFY_FAILED"),
        (lambda job, other: old_protocol(job), "UNSUPPORTED_PROTOCOL"),
    ],
    ids=["no certificate", "another authority", "TLS 1.2"],
)
def test_a_server_refuses(job, other_job, client, says):
    server, refused = talk(job.server_context(), client(job, other_job))
    assert isinstance(server, ssl.SSLError) and says in str(server)
    assert isinstance(refused, OSError) and not isinstance(refused, TimeoutError)


def test_a_client_refuses_a_server_of_another_job_and_another_name(job, other_job):
    _, refused = talk(other_job.server_context(), job.client_context())
    assert isinstance(refused, ssl.SSLCertVerificationError)
    _, refused = talk(job.server_context(), job.client_context(), "another.name")
    assert isinstance(refused, ssl.SSLCertVerificationError) and "not valid for 'another.name'" in str(refused)


@pytest.mark.parametrize("expired", ["server", "client"])
def test_an_expired_certificate_is_refused_by_either_side(copy, tmp_path, expired):
    # Valid in all but its time.
    job = Credentials.load(copy)
    old = tmp_path / "old"
    old.mkdir()
    write_pair(old, begins=NOW - 9 * DAY, ends=NOW - DAY)
    server, client = job.server_context(), job.client_context()
    for context in (server, client):
        context.load_verify_locations(old / "ca.pem")
    {"server": server, "client": client}[expired].load_cert_chain(old / "task.pem", old / "task.key")
    outcomes = dict(zip(("server", "client"), talk(server, client), strict=True))
    refusing = outcomes["client" if expired == "server" else "server"]
    assert isinstance(refusing, ssl.SSLCertVerificationError) and "certificate has expired" in str(refusing)


def test_a_client_that_speaks_no_tls_is_refused(job):
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(DEADLINE)
    with ends[0], ends[1]:
        ends[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ssl.SSLError):
            job.server_context().wrap_socket(ends[0], server_side=True)


# gRPC.


@pytest.fixture
def service(job):
    """The address of a server that answers members of the job."""

    def answer(request, context):
        token = dict(context.invocation_metadata()).get(TOKEN_METADATA, "")
        if not job.token_matches(token):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong")
        return request[::-1]

    handler = grpc.method_handlers_generic_handler("t.T", {"Echo": grpc.unary_unary_rpc_method_handler(answer)})
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[handler])
        port = server.add_secure_port("127.0.0.1:0", job.grpc_server_credentials())
        server.start()
        yield f"127.0.0.1:{port}"
        assert server.stop(0).wait(DEADLINE)


def call(address, channel_credentials, credentials, metadata):
    with grpc.secure_channel(address, channel_credentials, options=credentials.grpc_channel_options()) as channel:
        return channel.unary_unary("/t.T/Echo")(b"abc", metadata=metadata, timeout=DEADLINE)


def test_grpc_round_trip_and_tokens(job, other_job, service):
    mine = job.grpc_channel_credentials()
    assert call(service, mine, job, job.grpc_metadata()) == b"cba"
    for metadata in (other_job.grpc_metadata(), [(TOKEN_METADATA, "")], []):
        with pytest.raises(grpc.RpcError) as caught:
            call(service, mine, job, metadata)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("who", ["no certificate", "another authority", "does not trust us"])
def test_grpc_refuses(job, other_job, service, who):
    channel_credentials = {
        "no certificate": lambda: grpc.ssl_channel_credentials(job.ca),
        "another authority": lambda: grpc.ssl_channel_credentials(job.ca, other_job.key, other_job.certificate),
        "does not trust us": lambda: other_job.grpc_channel_credentials(),
    }[who]()
    with pytest.raises(grpc.RpcError) as caught:
        call(service, channel_credentials, job, job.grpc_metadata())
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_token_matches(job, other_job):
    assert job.token_matches(job.token) and job.token_matches(job.token.decode())
    for wrong in (b"", job.token[:-1], job.token + b"0", other_job.token, "é" * 64, b"\xff" * 64):
        assert not job.token_matches(wrong)


# Addresses.

LOOPBACK = ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "localhost", "LOCALHOST"]
NOT_LOOPBACK = [
    "",
    "0.0.0.0",
    "::",
    "[::]",
    "10.0.0.1",
    "::ffff:10.0.0.1",
    "128.0.0.1",
    "fe80::1",
    "a b",
    "x" * 300,
    "0",
]


@pytest.mark.parametrize(("hosts", "expected"), [(LOOPBACK, True), (NOT_LOOPBACK, False)])
def test_is_loopback(hosts, expected):
    assert {host: is_loopback(host) for host in hosts} == dict.fromkeys(hosts, expected)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [(["127.0.0.1", "::1"], True), (["127.0.0.1", "10.0.0.1"], False), (["192.168.1.2"], False), (None, False)],
)
def test_a_name_is_loopback_if_all_its_addresses_are(monkeypatch, addresses, expected):
    def resolve(host, port):
        if addresses is None:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert is_loopback("some-name") is expected


@pytest.mark.parametrize("address", ["localhost:2222", "127.0.0.1:1", "[::1]:1", "::1", "grpc://127.0.0.1:2222"])
def test_loopback_is_safe(address):
    require_safe(address, None, insecure=False)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:2222", ":2222", "[::]:2222", "10.0.0.1:2222", "grpc://10.0.0.1:1", "127.0.0.1:2@10.0.0.1", ""]
)
def test_other_addresses_need_credentials_or_a_word(job, address):
    with pytest.raises(errors.PermissionDeniedError) as caught:
        require_safe(address, None, insecure=False)
    for way_out in ("'localhost:2222'", "penstock credentials create DIR", "PENSTOCK_CREDENTIALS=DIR", "insecure=True"):
        assert way_out in str(caught.value)
    require_safe(address, job, insecure=False)
    require_safe(address, None, insecure=True)


# Refusals.


@pytest.fixture
def lines(caplog):
    with caplog.at_level(std_logging.WARNING, "penstock"):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_a_refused_peer_is_logged_once_and_counted(lines):
    log = RefusalLog()
    for peer in ("10.0.0.7:1", "10.0.0.7:2", "ipv4:10.0.0.7:3"):
        log.refused(peer, "its token is wrong")
    log.refused("10.0.0.7:4", "it showed no certificate")
    for peer in ("[fe80::1]:5", "ipv6:%5Bfe80::1%5D:6", "ipv6:[fe80::1]:7"):
        log.refused(peer, "its token is wrong")
    log.refused("", "its token is wrong")
    assert [line.partition(". If")[0] for line in lines()] == [
        "Refused a peer at 10.0.0.7: its token is wrong",
        "Refused a peer at 10.0.0.7: it showed no certificate",
        "Refused a peer at fe80::1: its token is wrong",
        "Refused a peer at an unknown address: its token is wrong",
    ]
    assert log.total == 8
    assert log.count("10.0.0.7:99", "its token is wrong") == 3


def test_many_peers_fill_neither_the_log_nor_the_memory(lines):
    log = RefusalLog(most=3)
    for index in range(50):
        log.refused(f"10.0.0.{index}:1", "its token is wrong")
    assert len(lines()) == 4 and "more than 3 ways" in lines()[-1]
    assert log.total == 50
    log.refused("10.0.0.0:1", "its token is wrong")
    assert log.count("10.0.0.0", "its token is wrong") == 2


def test_a_peer_cannot_write_lines_of_the_log(lines):
    RefusalLog().refused("evil\nhost:1", "said\n\x1b[2J" + "A" * 10_000)
    (line,) = lines()
    assert line.isprintable() and len(line) < 600
