"""Which texts are addresses, and which addresses only this machine reaches."""

from __future__ import annotations

import ipaddress


def is_port(text: str) -> bool:
    """Return whether ``text`` is a port's number in digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16


def is_host(text: str) -> bool:
    """Return whether ``text`` may be a name or address: the socket module raises a ValueError for others."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def loopback(host: str) -> bool:
    """Return whether ``host`` is an address that only this machine reaches, or ``localhost``.

    Args:
        host: An address, an IPv6 one with or without brackets, or a name. Any other name may be another machine's.
    """
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None  # ::ffff:127.0.0.1
    return (mapped or address).is_loopback
