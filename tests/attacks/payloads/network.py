# Family: the network, in the modes `off` and `loopback`. GIVEN names what the host offers: `port`
# (TCP on the host's 127.0.0.1), `port_any` (on all addresses), `port_6` (on ::1, or 0),
# `datagram_port`, `abstract` and `path` (Unix sockets), `addresses` (the host's own).

import socket

WAIT_SECONDS = 5


def greeted(family, address, label):
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(WAIT_SECONDS)
        probe.connect(address)
        word = probe.recv(64)
    if b"host speaking" not in word:
        raise Contained("somebody else answered")
    return "the host answered on " + label


@attack
def reach_host_loopback():
    return greeted(socket.AF_INET, ("127.0.0.1", GIVEN["port"]), "127.0.0.1")


@attack
def reach_host_loopback_by_another_name_of_it():
    return greeted(socket.AF_INET, ("127.9.9.9", GIVEN["port_any"]), "127.9.9.9")


@attack
def reach_host_loopback_by_zero_address():
    return greeted(socket.AF_INET, ("0.0.0.0", GIVEN["port"]), "0.0.0.0")


@attack
def reach_host_loopback_6():
    if not GIVEN["port_6"]:
        raise Contained("nothing: no IPv6 on this machine")
    return greeted(socket.AF_INET6, ("::1", GIVEN["port_6"]), "::1")


@attack
def reach_host_loopback_mapped():
    return greeted(socket.AF_INET6, ("::ffff:127.0.0.1", GIVEN["port"]), "::ffff:127.0.0.1")


@attack
def reach_own_addresses_of_host():
    if not GIVEN["addresses"]:
        raise Contained("nothing: the host has no address but its loopback")
    for address in GIVEN["addresses"]:
        try:
            return greeted(socket.AF_INET, (address, GIVEN["port_any"]), address)
        except OSError as error:
            last = error
    raise last


@attack
def send_datagram_to_host():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(WAIT_SECONDS)
        probe.sendto(b"hello", ("127.0.0.1", GIVEN["datagram_port"]))
        if probe.recv(64) != b"host speaking":
            raise Contained("somebody else answered")
    return "the host answered"


@attack
def reach_abstract_socket_of_host():
    return greeted(socket.AF_UNIX, "\0" + GIVEN["abstract"], "an abstract socket")


@attack
def reach_path_socket_of_host():
    return greeted(socket.AF_UNIX, GIVEN["path"], "a path socket")


@attack
def see_sockets_of_host():
    for table in ("/proc/net/tcp", "/proc/self/net/tcp", "/proc/1/net/tcp"):
        with open(table) as stream:
            if ":%04X" % GIVEN["port"] in stream.read():
                return "saw the host's socket in " + table
    raise Contained("tables are our own")


@attack
def see_abstract_names_of_host():
    with open("/proc/net/unix") as stream:
        if GIVEN["abstract"] in stream.read():
            return "saw the name of an abstract socket"
    raise Contained("not listed")


@attack
def see_other_interfaces():
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    if not names:
        raise Contained("nothing but lo")
    return "saw " + " ".join(names)


@attack
def route_to_the_world():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
    return "a route exists"


@attack
def reach_link_local_metadata():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("169.254.169.254", 80))
    return "a route exists"


@attack
def reach_the_hypervisor():
    with socket.socket(40, socket.SOCK_STREAM) as probe:
        probe.settimeout(WAIT_SECONDS)
        try:
            probe.connect((2, 1))
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EAFNOSUPPORT):
                raise
    return "AF_VSOCK opens"


@attack
def make_an_interface():
    # RTM_NEWLINK for a bridge: EPERM without the capability, EINVAL or success with it.
    import struct

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
        route.settimeout(WAIT_SECONDS)
        kind = b"dummy\0"
        inner = struct.pack("<HH", 4 + len(kind), 1) + kind + b"\0" * 2
        outer = struct.pack("<HH", 4 + len(inner), 18) + inner
        body = struct.pack("<BxHiII", 0, 0, 0, 0, 0) + outer
        route.send(struct.pack("<IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
        code = struct.unpack_from("<i", route.recv(4096), 16)[0]
        if code:
            raise OSError(-code, os.strerror(-code))
    return "made an interface"


main()
