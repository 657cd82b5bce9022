"""Gives a process of a test another number of the protocol.

First on its PYTHONPATH, Python imports this at its start.
"""

import os

from sepal.protocol import peer

peer.PROTOCOL = int(os.environ["SEPAL_TEST_PROTOCOL"])
