"""A SuperNode: Flower's ``flower-supernode``, by default with the resident process :mod:`sepal.engines.flower.warm`.

``python -m sepal.engines.flower.node`` takes the options of ``flower-supernode`` and differs from it in nine ways;
with ``--cold`` only in the first seven, and in the last if ``--poll`` is given:

- A late reply is pushed even if no further message arrives.
- A reply whose content does not arrive is abandoned.
- A message whose task has ended without a reply is answered with an error.
- A bundle with code is refused, unless ``--allow-code`` is given.
- It ends, with exit code ``LOST``, if its client loop or one of its threads ends by an error that Flower does not
  retry, such as RESOURCE_EXHAUSTED from a server at its limit of calls. Flower 1.39 keeps the process alive without its
  loop, or without its heartbeat: then the server takes it for offline, and sends it no more messages.
- Texts of a message are one printable line in its log.
- It talks to its client process over TLS, with a certificate made at the start.
- The executor is our resident process, which is restarted whenever it ends.
- The SuperNode's fixed pauses (3 s between polls for a message, .5 s between checks for the client's reply) start
  short and grow to that length while nothing happens; the first one grows to ``--poll`` seconds, if that is given.
  Flower has no option for them, so the clock of its module ``start_client_internal`` is replaced.

The changes to Flower's loop are in :mod:`sepal.flower.supernode`; on a release that it does not know, this
process ends at once.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from sepal.engines.flower.processes import listening
from sepal.engines.flower.protection import own_tls, refuse_code
from sepal.errors import one_line
from sepal.flower import supernode
from sepal.flower.versions import require_supported

LOST = 75  # exit code: the client loop ended by an error (EX_TEMPFAIL in sysexits.h)
RESTARTABLE = (0, LOST)  # exit codes after which the SuperNode is to be started again; 0: a call was not authenticated
ENDED = "sepal: the SuperNode's loop ended: "  # begins the line that says why, before it ends with LOST
_directories = set[Path]()  # of this process
RESTART = 1.0  # seconds before an executor that has ended is started again


def lost(why: str) -> NoReturn:
    """End this process, all of its threads included: Flower's HTTP thread would keep it alive.

    No block of another thread ends by this, so directories are removed here.
    """
    for directory in list(_directories):
        shutil.rmtree(directory, ignore_errors=True)
    print(ENDED + why, file=sys.stderr, flush=True)
    os._exit(LOST)


def end_with_threads() -> None:
    """End this process where a thread of it ends by an error, as Flower's heartbeat or the one below may."""
    threading.excepthook = lambda end: lost(f"a thread of it, {one_line(repr(end.exc_value), 300)}")


@contextmanager
def own_directory() -> Iterator[Path]:
    """Make a directory for certificate and secret, mode 700, that stays while a client runs for weeks.

    Whatever deletes old files in /tmp leaves one with a BSD lock alone (tmpfiles.d(5)). Otherwise an executor that is
    started again would find nothing there, or what another user has put in its place.
    """
    with tempfile.TemporaryDirectory(prefix="sepal-node-", ignore_cleanup_errors=True) as text:
        handle = os.open(text, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH)
        _directories.add(Path(text))
        try:
            yield Path(text)
        finally:
            _directories.discard(Path(text))
            os.close(handle)


def keep_executor(command: Sequence[str], port: int, wake: int) -> None:
    """Start the executor once the SuperNode listens, and restart it whenever it ends; does not return."""
    while not listening(port):
        time.sleep(0.1)
    while True:
        begun = time.monotonic()
        subprocess.run(command, pass_fds=(wake,), check=False)
        time.sleep(max(0.0, RESTART - (time.monotonic() - begun)))


def executor_command(options: argparse.Namespace, secret: Path, wake: int) -> list[str]:
    """Return the command of the resident client process."""
    command = [sys.executable, "-P", "-m", "sepal.engines.flower.warm", "--node", str(os.getpid()), "--wake", str(wake)]
    host = "localhost" if options.ssl_ca_certfile and options.host == "127.0.0.1" else options.host  # as certified
    command += ["--runtime-api-address", f"{host}:{options.port}", "--superexec-auth-secret-file", str(secret)]
    return command + (["--root-certificates", options.ssl_ca_certfile] if options.ssl_ca_certfile else [])


def main() -> None:
    """Run the SuperNode in this process; end the process if its client loop ends by an error."""
    why = "an error that Flower does not retry"
    end_with_threads()
    try:
        run()  # an error of gRPC ends the loop without an exception
    except Exception as error:
        why = one_line(str(error), 300)
    lost(why)


def run() -> None:
    """Run the SuperNode in this process."""
    require_supported()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--allow-code", action="store_true")
    parser.add_argument("--poll", type=float, default=supernode.MESSAGE)
    chosen, flowers = parser.parse_known_args()
    shared = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    shared.add_argument("--host", default="127.0.0.1")
    shared.add_argument("--port", type=int, required=True)
    shared.add_argument("--ssl-ca-certfile")
    shared.add_argument("--superexec-auth-secret-file")
    options, _ = shared.parse_known_args(flowers)
    supernode.log_one_line()
    loop = supernode.loop()
    if not chosen.allow_code:
        supernode.refuse_bundles(loop, refuse_code)
    supernode.push_late_replies(loop)
    supernode.give_up_lost_content(loop)
    supernode.answer_abandoned(loop)
    received, wake = os.pipe()
    os.set_blocking(wake, False)
    if not chosen.cold or chosen.poll != supernode.MESSAGE:
        supernode.shorten(loop, supernode.Pauses(wake, chosen.poll))
    with own_directory() as directory:
        more = [] if options.ssl_ca_certfile else own_tls(directory)
        options.ssl_ca_certfile = options.ssl_ca_certfile or more[-1]
        if chosen.cold:
            supernode.start([*flowers, *more])
            return
        secret = Path(options.superexec_auth_secret_file or directory / "secret")
        more += ["--isolation", "process"]
        if options.superexec_auth_secret_file is None:
            secret.write_bytes(secrets.token_bytes(32))
            secret.chmod(0o600)
            more += ["--superexec-auth-secret-file", str(secret)]
        command = executor_command(options, secret, received)
        threading.Thread(target=keep_executor, args=(command, options.port, received), daemon=True).start()
        supernode.start([*flowers, *more])


if __name__ == "__main__":
    main()
