"""Where process 0 listens: at the addresses to which the coordinator's name resolves.

Debian maps a machine's own name to 127.0.1.1 in /etc/hosts, so the name resolves differently on
that machine than everywhere else. If a name other than localhost resolves to loopback, process 0
also listens at the machine's outward address.
"""

import errno
import socket
import time
from collections.abc import Iterator
from typing import Any

from mlstm_jax.address import Address, is_literal, is_loopback
from mlstm_jax.errors import UserError

# Documentation addresses (RFC 5737 and 3849): no machine has them, so the default route is used.
_FAR = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
# A name may resolve to addresses that this machine does not have.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

Where = tuple[int, Any]  # the family of an address, and the address in the family's format


def listen(address: Address, deadline: float = 0.0) -> list[socket.socket]:
    """Listen at every address of this machine to which the coordinator's name resolves.

    A name that does not resolve yet, such as that of a new pod, is tried again until the deadline.

    Raises UserError if none of the addresses belongs to this machine, or the port is in use.
    """
    sockets: list[socket.socket] = []
    try:
        found = _resolve(address, 0.0 if is_literal(address.host) else deadline)
        if _is_hidden(address.host, [where[0] for _, where in found]):
            found += _outward(address.port)
        problem: OSError | None = None
        for family, where in found:
            try:
                sockets.append(socket.create_server(where, family=family, backlog=1024))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                problem = error
        if problem and not sockets:
            raise problem
    except OSError as error:
        for server in sockets:
            server.close()
        raise UserError(
            f"process 0 cannot listen at distributed.coordinator {address} ({error}); set it to an "
            "address at which the others reach this machine, and a free port."
        ) from error
    return sockets


def note(host: str, hosts: list[str]) -> str:
    """Describe what may keep others from reaching process 0, which listens at numeric `hosts`."""
    here = " and ".join(filter(is_loopback, hosts))
    beyond = " and ".join(each for each in hosts if not is_loopback(each))
    if not here:
        return ""
    if not beyond:
        return (
            f"process 0 listens only at {here}, which processes on other machines cannot reach; "
            "if there are any, set distributed.coordinator to an address that they can reach"
        )
    return (
        f"{host} resolves to {here} on the machine of process 0, so process 0 also listens at "
        f"{beyond}; if the others reach that machine at another address, set "
        "distributed.coordinator to it"
    )


def loopback_of(host: str) -> str:
    """Return the loopback address to which a name resolves here; "" if it has another or none."""
    try:
        found = [where[0] for _, where in _resolve(Address(host, 1), 0.0)]
    except OSError:
        return ""
    return found[0] if all(map(is_loopback, found)) else ""


def numeric_host(where: Any) -> str:
    """Return the host of a socket's address, with the zone of a link-local one."""
    return socket.getnameinfo(where, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]


def free_port(host: str) -> int:
    """Return a free port of a numeric host of this machine."""
    ((family, where), *_) = _resolve(Address(host, 0), 0.0)
    with socket.create_server(where, family=family) as server:
        return int(server.getsockname()[1])


def _resolve(address: Address, deadline: float) -> list[Where]:
    while True:
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
            return list(dict.fromkeys((family, where) for family, *_, where in found))
        except socket.gaierror:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _is_hidden(host: str, found: list[str]) -> bool:
    """Whether a name resolves only to loopback here, although the name does not suggest it."""
    meant = is_literal(host) or "localhost" in host.lower() or "loopback" in host.lower()
    return not meant and all(map(is_loopback, found))


def _outward(port: int) -> Iterator[Where]:
    """Yield this machine's addresses on its default routes; nothing is sent."""
    for family, far in _FAR.items():
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                here = probe.getsockname()
        except OSError:
            continue  # There is no default route of this family.
        if not is_loopback(here[0]):
            yield family, (here[0], port, *here[2:])
