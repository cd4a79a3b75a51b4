"""Addresses of processes, HOST:PORT: the only module that parses and formats them."""

import ipaddress
from typing import NamedTuple


class Address(NamedTuple):
    """Address of a process; as text, an IPv6 address is in brackets."""

    host: str  # a name, an IPv4 address, or an IPv6 address without brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> Address:
    """Parse node1:8476, 10.0.0.1:8476, [fd00::1]:8476 or [fe80::1%eth0]:8476.

    Raises ValueError, which states the required form.
    """
    host, _, port = text.rpartition(":")
    if is_ipv6(host) or is_ipv6(text):
        # The part after the last colon may be the port or the end of the address.
        meant = f"[{host}]:{port}" if is_ipv6(host) else f"[{text}]:8476"
        raise ValueError(f"HOST:PORT with brackets around an IPv6 address, such as {meant}")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
    if not _is_port(port) or not (is_ipv6(bare) or _is_name(host)):
        raise ValueError("HOST:PORT, such as node1:8476 or [fd00::1]:8476")
    return Address(bare or host, int(port))


def is_ipv6(host: str) -> bool:
    """Whether a host is an IPv6 address, with or without a zone, rather than a name."""
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def is_literal(host: str) -> bool:
    """Whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an IP address is the machine itself, such as 127.0.0.1."""
    return ipaddress.ip_address(host).is_loopback


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


def _is_name(host: str) -> bool:
    try:
        host.encode("idna")  # The resolver does the same.
    except UnicodeError:
        return False
    return bool(host) and host.isprintable() and not set(host) & set(" :/@%[]")
