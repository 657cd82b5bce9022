"""The file ``devices.toml`` of a run: the profile of devices that the key ``devices`` named when it began."""

from __future__ import annotations

from pathlib import Path

from sepal.errors import ConfigError, StateError
from sepal.simulated_time import FILE, DeviceProfile, parse_profile, read_profile
from sepal.storage.files import write_atomically
from sepal.storage.regular import read_text


def stored_devices(path: Path) -> DeviceProfile | None:
    """Return the profile of the run at ``path``; None if it began without.

    Raises:
        StateError: The file is damaged, or a link that leads out of the run's directory.
    """
    try:
        return parse_profile(read_text(path / FILE, within=path), FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ConfigError as reason:
        raise StateError(str(path / FILE), "a profile of devices", str(reason)) from None


def keep_devices(path: Path, named: str, begun: bool) -> None:
    """Write the profile that a new run's key names, or compare it with that of a run that has begun.

    Args:
        path: The run directory.
        named: The key's value; empty for none.
        begun: Whether the run has begun.

    Raises:
        ConfigError: The profile cannot be read, or is not the one with which the run began.
    """
    profile = read_profile(named) if named else None
    if not begun:
        (path / FILE).unlink(missing_ok=True)  # of a start that was refused
        if profile is not None:
            write_atomically(path / FILE, profile.text().encode())
    elif profile != stored_devices(path):
        expected = f"the profile with which the run {path.name} was started, which is in {path / FILE}"
        got = "another; bring it back" if profile else "none"
        raise ConfigError("devices", expected, got)
