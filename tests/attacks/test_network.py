"""Attacks on the network border in the modes `off` and `loopback`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import arena
import drive
import pytest

MODES = pytest.mark.parametrize("mode", ["off", "loopback"])
NO_CONTROL = {
    "reach_link_local_metadata": "depends on the routes of the machine",
    "route_to_the_world": "depends on the routes of the machine",
    "reach_the_hypervisor": "depends on the modules of the kernel",
}


def serve(listener: socket.socket) -> None:
    """Greet whoever connects, until the socket is closed."""
    try:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"host speaking")
    except OSError:
        return


def answer(listener: socket.socket) -> None:
    try:
        while True:
            _, sender = listener.recvfrom(64)
            listener.sendto(b"host speaking", sender)
    except OSError:
        return


def own_addresses() -> list[str]:
    """The addresses of this machine that are not its loopback's."""
    try:
        done = subprocess.run(["hostname", "-I"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [word for word in done.stdout.decode().split() if ":" not in word]


@contextmanager
def host_servers(starter: drive.Starter) -> Iterator[dict[str, Any]]:
    """Servers on the host's loopback, on all its addresses, and on Unix sockets."""
    abstract = "kis-test-" + uuid.uuid4().hex
    with ExitStack() as stack:
        room = stack.enter_context(starter.room())

        def listen(family: int, address: Any) -> socket.socket:
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.bind(address)
            listener.listen()
            threading.Thread(target=serve, args=(listener,), daemon=True).start()
            # A thread in accept() does not wake by close() alone.
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return listener

        port = listen(socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1]
        port_any = listen(socket.AF_INET, ("0.0.0.0", 0)).getsockname()[1]
        try:
            port_6 = listen(socket.AF_INET6, ("::1", 0)).getsockname()[1]
        except OSError:
            port_6 = 0
        listen(socket.AF_UNIX, "\0" + abstract)
        listen(socket.AF_UNIX, str(room / "socket"))
        (room / "socket").chmod(0o777)
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        threading.Thread(target=answer, args=(datagrams,), daemon=True).start()
        yield {
            "port": port,
            "port_any": port_any,
            "port_6": port_6,
            "datagram_port": datagrams.getsockname()[1],
            "abstract": abstract,
            "path": str(room / "socket"),
            "addresses": own_addresses(),
        }


@arena.ways
@MODES
def test_network_stays_closed(way: arena.Way, mode: str) -> None:
    """Nothing of the host answers, nothing beyond it can be addressed."""
    with host_servers(arena.who(way.starter)) as given:
        arena.assert_contained(arena.attack(way, "network", given, "--net", mode))


def test_network_is_open_without_protection() -> None:
    """The same attempts succeed in the process tier's place: an unconfined process."""
    with host_servers(arena.who("user")) as given:
        # An interface is made in a namespace only: below.
        given["skip"] = ["make_an_interface"]
        report = arena.unprotected([], "network", given)
    excused = {name: why for name, why in NO_CONTROL.items() if report[name].verdict != "out"}
    arena.assert_gets_out(report, excused)


def test_interface_can_be_made_with_capabilities() -> None:
    """The control for netlink: with the capability, in a namespace of its own, the kernel obeys."""
    arena.need_root_for_control()
    given = {"port": 1, "port_any": 1, "port_6": 0, "datagram_port": 1}
    given.update({"abstract": "none", "path": "/none", "addresses": []})
    report = arena.unprotected(["unshare", "--net"], "network", given)
    row = report["make_an_interface"]
    # ENOTSUP: allowed to ask, but the kernel has no such kind of device.
    assert row.verdict == "out" or row.detail == "ENOTSUP", row


CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as probe:
    probe.connect("/m/socket")
    print(probe.recv(64))
"""


@arena.ways
def test_path_socket_in_a_read_only_mount(way: arena.Way) -> None:
    """A socket that lies in a read-only mount answers nobody, where mounts can be id-mapped.

    Without privilege they cannot, and read-only does not stop connect(2): the receipt says so.
    """
    starter = arena.who(way.starter)
    with host_servers(starter) as given:
        place = os.path.dirname(given["path"])
        flags = (*way.flags, "-v", f"{place}:/m", "--json")
        done = starter.container("python3", "-I", "-c", CONNECT, flags=flags)
    shown = json.loads(done.stdout)
    if starter.is_root:
        assert shown["exit_code"] == 1, shown
        assert "PermissionError" in shown["stderr"]
    else:
        assert "sockets" in json.dumps(shown["receipt"])


RESOLVE = """
import socket, time
t = time.time()
for what, call in (("dns", lambda: socket.getaddrinfo("example.com", 443)),
                   ("tcp", lambda: socket.create_connection(("192.0.2.1", 80), 30))):
    try:
        call(); print(what, "succeeded")
    except OSError as e:
        print(what, "failed")
print(time.time() - t < 2)
"""


@arena.ways
@MODES
@pytest.mark.parametrize("resolver", [None, "nameserver 192.0.2.53\n"], ids=["own", "unreachable"])
def test_names_fail_fast(way: arena.Way, mode: str, resolver: str | None) -> None:
    """Case A15: resolving and connecting fail at once, whatever resolv.conf names."""
    starter = arena.who(way.starter)
    with starter.room() as room:
        flags = [*way.flags, "--net", mode]
        if resolver is not None:
            (room / "resolv.conf").write_text(resolver)
            flags += ["--mount", f"source={room}/resolv.conf,target=/etc/resolv.conf"]
        done = starter.container("python3", "-I", "-c", RESOLVE, flags=tuple(flags))
    assert done.stdout == b"dns failed\ntcp failed\nTrue\n", (done.stdout, done.stderr)


OWN_LOOPBACK = """
import socket, threading
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    server = socket.create_server((address, 0), family=family)
    threading.Thread(target=lambda: server.accept()[0].sendall(b"own"), daemon=True).start()
    with socket.create_connection(server.getsockname()[:2], 5) as client:
        print(address, client.recv(8).decode())
low = socket.create_server(("127.0.0.1", 80))
print("port", low.getsockname()[1])
ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
print("ping", ping.fileno() > 2)
"""


@arena.ways
def test_loopback_is_a_loopback(way: arena.Way) -> None:
    """In mode `loopback` programs inside talk to each other, on low ports too."""
    starter = arena.who(way.starter)
    flags = (*way.flags, "--net", "loopback")
    done = starter.container("python3", "-I", "-c", OWN_LOOPBACK, flags=flags)
    assert done.stdout == b"127.0.0.1 own\n::1 own\nport 80\nping True\n", done.stderr


@arena.ways
def test_off_has_no_loopback_either(way: arena.Way) -> None:
    """In mode `off` not even an own server can be reached."""
    code = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname(), 5)\n"
    )
    done = arena.who(way.starter).container("python3", "-I", "-c", code, flags=way.flags)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert b"OSError" in done.stderr or b"Error" in done.stderr
