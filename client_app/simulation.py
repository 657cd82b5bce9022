"""Keeps Ray, which Flower's simulation starts, on this machine and to this run.

Ray runs whatever code it is sent. By default its processes listen on all addresses and ask nobody for a credential. So
before it starts, its address is set to the loopback one, and a random token is demanded from everybody.

Flower's simulation loads the ClientApp before it starts Ray, in the process that starts it (``start_vce``), so this
also holds for a plain ``flwr run .``. ``tests/e2e/test_ray.py`` looks at the sockets.
"""

from __future__ import annotations

import os
import secrets
import sys

# Ray's name of the switch. If it is off, Ray takes 127.0.0.1 as the machine's address, on any system.
CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def protect_ray() -> None:
    """Set what Ray reads when it starts, unless ``RAY_ADDRESS`` names a cluster of the user's own."""
    if os.environ.get("RAY_ADDRESS", "local") != "local":
        return
    os.environ["RAY_ADDRESS"] = "local"  # otherwise a cluster that was left behind is waited for, for ever
    os.environ[CLUSTER] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if "ray" in sys.modules:  # it has read the switch already
        from ray._private import ray_constants

        ray_constants.ENABLE_RAY_CLUSTER = False
