"""Where the ranks of one notebook meet: a store that the kernel keeps.

The kernel keeps it, not rank 0, so that a dead rank can't take it along. It listens
on 127.0.0.1 only, on a port that the system chose and that was never free in
between: nobody else can reach it or take the port.
"""
import os
import socket
import struct
import sys
import tempfile
from pathlib import Path

SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address, see netdevice(7)


class Meeting:
    """The kernel's side of the store; `address()` gives each set of ranks its own.

    Where torch's store isn't able to use a socket of ours (Windows, and macOS to be
    safe), the ranks meet in a file in a fresh private folder instead.
    """

    def __init__(self):
        self._count = 0
        self.port = 0
        if sys.platform == "linux":
            self._serve()
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="ranks-")

    def _serve(self):
        from torch.distributed import TCPStore

        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._store = TCPStore(
            "127.0.0.1", self.port, is_master=True, wait_for_workers=False,
            master_listen_fd=listener.detach())

    def address(self):
        """A new address, which no earlier set of ranks has used.

        Returns:
            (port, name): port 0 means that name is a file's path.
        """
        self._count += 1
        if self.port:
            return self.port, f"set {self._count}"
        return 0, str(Path(self._folder.name) / f"set {self._count}")


def open_store(port, name, size):
    """The store behind an address, as a rank sees it."""
    from torch.distributed import FileStore, PrefixStore, TCPStore

    if port:
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        return PrefixStore(name, store)
    return FileStore(name, size)


def loopback():
    """The interface that gloo should use on Linux; elsewhere it chooses by itself.

    Otherwise gloo looks up the host's name, which fails or finds a VPN.
    """
    return {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


def interface_towards(host):
    """The interface that leads to the first machine, for gloo to use (Linux only).

    Args:
        host: the master's name or address.

    Returns:
        dict, empty where the user has chosen one or none can be found.
    """
    if sys.platform != "linux" or "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # UDP: nothing is sent, only a route is chosen
        except OSError:
            return {}
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, SIOCGIFADDR,
                                    struct.pack("256s", name.encode()))
            except OSError:  # an interface without an address
                continue
            if found[20:24] == own:
                return {"GLOO_SOCKET_IFNAME": name}
    return {}
