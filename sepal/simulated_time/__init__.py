"""Seconds as they would be on clients' devices: profiles of devices, and what a client's work takes on one of them.

Nothing here looks at a clock: the seconds of the machine that simulates never enter. ``docs/simulated-time.md`` has the
format of a profile and the formulas.
"""

from sepal.simulated_time.profile import (
    BUILT_IN,
    FILE,
    DeviceProfile,
    SimulatedDevice,
    located,
    parse_profile,
    rates,
    read_profile,
    without_room,
)
from sepal.simulated_time.work import ClientWork, RoundEnd, end_of_round, seconds, training_work

__all__ = [
    "BUILT_IN",
    "FILE",
    "ClientWork",
    "DeviceProfile",
    "RoundEnd",
    "SimulatedDevice",
    "end_of_round",
    "located",
    "parse_profile",
    "rates",
    "read_profile",
    "seconds",
    "training_work",
    "without_room",
]
