"""Certificates and keys of a server and of a node, and the options that pass them to Flower's commands."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sepal.errors import ConfigError, StateError, one_line
from sepal.names import NAME
from sepal.operation.expiry import read_certificate
from sepal.storage.regular import read_bytes, read_text


def _pem_key(data: bytes) -> Any:
    return serialization.load_pem_private_key(data, None)


def _ssh_key(data: bytes) -> Any:
    return serialization.load_ssh_private_key(data, None)


REVOKED = ".revoked"  # of a public key that is not registered again
LARGEST = 1 << 16  # bytes of a certificate or a key; an endless file would fill the memory

# File → a description of its content, and the function that reads it
_FORMS: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "ca.crt": ("a certificate in PEM", read_certificate),
    "server.pem": ("a certificate in PEM", read_certificate),
    "server.key": ("a private key in PEM", _pem_key),
    "key": ("a private key in OpenSSH's format", _ssh_key),
}


@dataclass(frozen=True)
class ServerCredentials:
    """The credentials of a SuperLink: a directory ``server`` written by `sepal certs`.

    Attributes:
        directory: Contains ca.crt, server.pem, server.key, and the public keys nodes/NAME.pub.
    """

    directory: Path

    @classmethod
    def of(cls, directory: Path) -> ServerCredentials:
        """Return the credentials in ``directory``, or in ``server`` below it.

        Raises:
            ConfigError: A file is missing or damaged, or a key can be read by others.
        """
        folder = next((p for p in (directory, directory / "server") if (p / "server.pem").exists()), None)
        if folder is None:
            raise ConfigError("--certs", "a directory with server.pem (see `sepal certs`)", str(directory))
        _check(folder, ("ca.crt", "server.pem", "server.key"), private=("server.key",))
        return cls(folder.absolute())

    @property
    def authority(self) -> Path:
        """The CA certificate with which clients verify the server's."""
        return self.directory / "ca.crt"

    @property
    def certificates(self) -> tuple[Path, Path]:
        """The server's certificate and that of the authority, without both of which no client connects."""
        return self.directory / "server.pem", self.authority

    def options(self) -> list[str]:
        """Return the options of flower-superlink: TLS everywhere, and nodes with registered keys only."""
        options = ["--ssl-ca-certfile", str(self.authority), "--ssl-certfile", str(self.directory / "server.pem")]
        return [*options, "--ssl-keyfile", str(self.directory / "server.key"), "--enable-supernode-auth"]

    def node_keys(self) -> dict[str, Path]:
        """Return the public keys to register, by node name, sorted.

        Raises:
            OSError: The directory cannot be listed.
        """
        with os.scandir(self.directory / "nodes") as entries:
            paths = sorted(Path(entry.path) for entry in entries)
        return {path.stem: path for path in paths if path.suffix == ".pub" and not path.name.startswith(".")}

    def revoke(self, name: str) -> None:
        """Take a node's public key away for good: also where a copy of it is put back, it is not registered again.

        Where this is the directory in which the keys were made, the node's private key is removed, too.

        Raises:
            ConfigError: There is no such key, or its file cannot be changed.
        """
        try:
            keys = self.node_keys()
            if name not in keys:
                raise ConfigError("NAME", f"one of {', '.join(keys) or 'no keys'} in {self.directory / 'nodes'}", name)
            digest = hashlib.sha256(read_bytes(keys[name], LARGEST)).hexdigest()[:12]
            keys[name].replace(keys[name].with_name(f"{name}.{digest}{REVOKED}"))
            node_directory = self.directory.parent / "nodes" / name
            if (node_directory / "key").exists():
                shutil.rmtree(node_directory)
        except OSError as reason:
            raise ConfigError(
                "--certs", "a directory that can be changed", f"{reason.filename}: {reason.strerror}"
            ) from None

    def revoked(self) -> frozenset[str]:
        """Return the fingerprints of the keys that were revoked.

        Raises:
            OSError: The directory or a file in it cannot be read.
            ValueError: A file holds something else.
        """
        with os.scandir(self.directory / "nodes") as entries:
            return frozenset(fingerprint(Path(entry.path)) for entry in entries if entry.name.endswith(REVOKED))


@dataclass(frozen=True)
class NodeCredentials:
    """The credentials of a SuperNode: a directory ``nodes/NAME`` written by `sepal certs`.

    Attributes:
        directory: Contains ca.crt and the private key.
    """

    directory: Path

    @classmethod
    def of(cls, directory: Path, name: str) -> NodeCredentials:
        """Return the credentials in ``directory``, or those of ``name`` if it contains several nodes'.

        Raises:
            ConfigError: A file is missing or damaged, or the key can be read by others.
        """
        places = (directory, directory / name, directory / "nodes" / name)
        folder = next((p for p in places if (p / "key").exists()), None)
        if folder is None:
            expected = f"a directory with a node's key, or with nodes/{name or 'NAME'}/key (see `sepal certs`)"
            expected += "" if name else ", and --name NAME"
            raise ConfigError("--certs", expected, str(directory))
        _check(folder, ("ca.crt", "key"), private=("key",))
        return cls(folder.absolute())

    @property
    def authority(self) -> Path:
        """The CA certificate with which the server's is verified."""
        return self.directory / "ca.crt"

    @property
    def name(self) -> str:
        """The client's name, which `sepal certs` wrote beside the public key; empty if it is not here.

        Whoever made the key has written it, and a client's directories are called so.

        Raises:
            ConfigError: It is no client's name, such as a path.
        """
        file = self.key.with_suffix(".pub")
        try:
            written = read_text(file, LARGEST).split()[2]
        except (OSError, StateError, IndexError):
            return ""
        if not NAME.match(written):
            expected = "a client's name behind the key: at most 64 letters, digits, '.', '_' or '-'"
            raise ConfigError(str(file), expected, one_line(written, 80))
        return written

    @property
    def key(self) -> Path:
        """The node's private key."""
        return self.directory / "key"

    def options(self) -> list[str]:
        """Return the options of flower-supernode."""
        return ["--root-certificates", str(self.authority), "--auth-supernode-private-key", str(self.key)]


def fingerprint(public_key: Path) -> str:
    """Return a digest of a public key, the same however its file writes it.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not a key that Flower takes: OpenSSH's format, on the curve P-384.
    """
    try:
        key = serialization.load_ssh_public_key(read_bytes(public_key, LARGEST))
    except OSError:
        raise
    except Exception as reason:  # of bytes from elsewhere, the library also raises NotImplementedError
        raise ValueError(str(reason)) from None
    if not isinstance(getattr(key, "curve", None), ec.SECP384R1):
        raise ValueError("not a key on the curve P-384")
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return hashlib.sha256(line).hexdigest()


def _check(folder: Path, names: tuple[str, ...], private: tuple[str, ...]) -> None:
    for name in names:
        if not os.access(folder / name, os.R_OK):
            raise ConfigError("--certs", f"a readable file {name}", f"none in {folder}")
    for name in private:
        mode = (folder / name).stat().st_mode & 0o777
        if mode & 0o077:
            raise ConfigError(str(folder / name), "mode 600: only its owner may read a private key", f"mode {mode:o}")
    for name in names:
        expected, read = _FORMS[name]
        try:
            read(read_bytes(folder / name, LARGEST))
        except StateError:
            raise
        except Exception as reason:  # as in `fingerprint`
            raise ConfigError(str(folder / name), expected, one_line(str(reason), 120)) from None
