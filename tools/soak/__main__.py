"""One deployed run through what a year brings: ``python -m tools.soak [--rounds 800]``.

A server and three clients, with TLS and keys. In mid-run one client's data grow, the server's certificate is renewed,
the server's machine is paused, one client's disk is full, the server's files are lost and restored from a copy, and all
machines are upgraded one by one. At the end the records are checked: all rounds, each with each client, each event
where it is to be seen, and files of the size that docs/sizing.md names.

With ``--store`` the result is written to tools/results/soak.json and soak.md (``tests/tools/test_soak.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import NodeCredentials
from sepal.engines.flower.probe import examine
from sepal.operation.expiry import expiry
from sepal.protocol.peer import PROTOCOL
from sepal.report.printing import say
from tests.e2e.machines import RUN, Machines
from tools.chaos.federation import fill, small_disk
from tools.growth.__main__ import BOUNDED, RESULTS, SETTLED, rounds_in, sizes, watch
from tools.soak.page import MARGIN, page

CLIENTS = ("site-a", "site-b", "site-c")
KEYS: dict[str, object] = {
    "dataset": "own",
    "own.shape": "1x8x8",
    "own.classes": 10,
    "model": "digits-cnn",
    "method": "ditto",  # it keeps a state with each client
    "clients": len(CLIENTS),
    "local-epochs": 1,
    "lr": 0.1,
    "evaluate-every": 10,
    "data-changes": "accept",
    "keep-versions": 20,
    "timeout": 600,
}
DATA = """
import json
from pathlib import Path

from sklearn.datasets import load_digits

SIZES = Path(__file__).with_name("sizes.json")


def site(number):
    size = json.loads(SIZES.read_text())[number]
    digits = load_digits()
    x, y = digits.images[500 * number :][:size, None].astype("float32") / 16, digits.target[500 * number :][:size]
    return x[:-20], y[:-20], x[-20:], y[-20:]
"""
SIZES = {"before": [100, 100, 100], "after": [160, 100, 100]}
VALID = 20  # days for which the first certificate is valid: one of the last 30 days is renewed
PAUSE = 75.0  # seconds; without a heartbeat for 60, Flower ends a run
OLD = 10  # rounds that the copy is older than the server; fewer in a short run
ROOM = 64  # MB of the disk that is filled
# Bytes a round of the files that grow: of the round, and of each client (docs/sizing.md).
GROWING = {"metrics.jsonl": (1100, 310), "ledger.jsonl": (0, 345), "checkpoints/records/": (350, 1400)}
SAMPLES = 24  # of files and memory, evenly over the rounds


class Soak:
    """The machines, and what is done to them.

    Args:
        directory: For everything.
        rounds: Rounds of the run.
        disk: A small disk for the files of the last client; None if there is none.
        pause: Seconds for which the server is paused.
    """

    def __init__(self, directory: Path, rounds: int, disk: Path | None, pause: float) -> None:
        self.directory, self.rounds, self.disk, self.pause = directory, rounds, disk, pause
        self.certs = directory / "fl-certs"
        self.run = directory / "runs" / RUN
        options: dict[str, tuple[str, ...]] = {"serve": ("--certs", str(self.certs / "server"))}
        for number, name in enumerate(CLIENTS):
            key = ("--name", name, "--certs", str(self.certs / "nodes" / name))
            options[f"join{number}"] = (*key, "--data", f"sites:site_{number}")
        self.machines = Machines(directory, {**KEYS, "rounds": rounds}, options, patience=900.0)
        functions = "".join(f"\n\ndef site_{number}():\n    return site({number})\n" for number in range(len(CLIENTS)))
        (directory / "sites.py").write_text(DATA + functions, encoding="utf-8")
        self._have(SIZES["before"])
        make_certificates(self.certs, nodes=CLIENTS, days=VALID)

    def start(self, name: str, protocol: int = PROTOCOL) -> None:
        """Start a machine, or start it again."""
        environment = {"SEPAL_TEST_PROTOCOL": str(protocol)}
        if self.disk and name == f"join{len(CLIENTS) - 1}":
            environment["SEPAL_HOME"] = str(self.disk)
        self.machines.start(name, "protocol", **environment)

    def start_all(self) -> None:
        """Start the server and the clients."""
        for name in ("serve", *(f"join{number}" for number in range(len(CLIENTS)))):
            self.start(name)

    def go_on(self) -> None:
        """Wait for a further round."""
        self.machines.await_rounds(len(self.machines.rounds()) + 1)

    def _have(self, numbers: list[int]) -> None:
        part = self.directory / "sizes.part"
        part.write_text(json.dumps(numbers), encoding="utf-8")
        part.replace(self.directory / "sizes.json")

    def data_grow(self) -> str:
        """Let the first client have more data."""
        self._have(SIZES["after"])
        self.machines.await_line("run", f"the data of {CLIENTS[0]} have changed")
        return f"{CLIENTS[0]} has {SIZES['after'][0]} examples instead of {SIZES['before'][0]}"

    def renew_certificate(self) -> str:
        """Renew the server's certificate, and start the server again with it."""
        file = self.certs / "server" / "server.pem"
        if not make_certificates(self.certs).server:
            raise RuntimeError(f"expected {file} to be renewed")
        self.start("serve")
        self.go_on()
        address = f"127.0.0.1:{self.machines.ports[0]}"
        credentials = NodeCredentials.of(self.certs / "nodes" / CLIENTS[0], CLIENTS[0])
        (words,) = [finding.words for finding in examine(address, credentials) if finding.check == "certificate"]
        days = f"{(expiry(file) - datetime.now(UTC)).total_seconds() / 86_400:.0f} more days"
        if days not in words:
            raise RuntimeError(f"expected the server to show a certificate for {days}, got {words}")
        return f"the server shows a certificate for {days} instead of {VALID}"

    def pause_server(self) -> str:
        """Stop all processes of the server for a while."""
        self.machines.signal("serve", signal.SIGSTOP)
        time.sleep(self.pause)
        self.machines.signal("serve", signal.SIGCONT)
        self.go_on()
        return f"all processes of the server stood still for {self.pause:g} s"

    def fill_disk(self) -> str:
        """Fill the last client's disk, until the server has said so, and make room again."""
        if not self.disk:
            return "left out: this user cannot mount a disk"
        filler, name = fill(self.disk), CLIENTS[-1]
        self.machines.await_line("run", f"{name}: no-room")
        filler.unlink()
        self.machines.await_line("run", f"{name} can write again")
        return f"{name} was away while its disk of {ROOM} MB was full"

    def lose_server(self) -> str:
        """Make a backup, lose the server's run some rounds later, and go on from the copy."""
        copies = self.directory / "copies"
        command = [sys.executable, "-m", "sepal.cli", "backup", str(self.run), str(copies)]
        subprocess.run(command, cwd=self.directory, check=True, stdout=subprocess.DEVNULL)
        copied = rounds_in(copies / RUN / "metrics.jsonl")
        self.machines.await_rounds(copied + min(OLD, self.rounds // 10))
        self.machines.stop("serve")
        lost = len(self.machines.rounds())
        shutil.rmtree(self.run)
        shutil.copytree(copies / RUN, self.run)
        self.start("serve")
        self.machines.await_rounds(lost + 1)
        return f"the server went back from round {lost} to a copy of round {copied}"

    def upgrade(self) -> str:
        """Upgrade the clients one by one, then the server, within the run."""
        for number, name in enumerate(CLIENTS):
            self.start(f"join{number}", PROTOCOL + 1)
            self.machines.await_line("run", f"{name} has protocol {PROTOCOL + 1}")
            self.go_on()
        self.start("serve", PROTOCOL + 1)
        self.go_on()
        return f"protocol {PROTOCOL + 1} instead of {PROTOCOL}: three clients, then the server"

    def events(self) -> list[Callable[[], str]]:
        """Return all events, in their order."""
        return [
            self.data_grow,
            self.renew_certificate,
            self.pause_server,
            self.fill_disk,
            self.lose_server,
            self.upgrade,
        ]

    def processes(self) -> list[psutil.Process]:
        """Return all running processes of the machines."""
        running = []
        for machine in list(self.machines.running.values()):
            try:
                process = psutil.Process(machine.pid)
                running += [process, *process.children(recursive=True)]
            except psutil.Error:  # it has just ended
                continue
        return running

    def directories(self) -> list[Path]:
        """Return where the machines write."""
        return [self.directory / "runs", self.directory / "home", *([self.disk] if self.disk else [])]


def play_events(soak: Soak, rounds: int) -> list[dict[str, Any]]:
    """Start everything, and let all events happen, evenly over the rounds; return a row for each."""
    soak.start_all()
    rows, events = [], soak.events()
    for number, event in enumerate(events, 1):
        soak.machines.await_rounds(number * rounds // (len(events) + 2))
        after, began = len(soak.machines.rounds()), time.monotonic()
        words = event()
        rows.append(
            {
                "event": event.__name__.replace("_", " "),
                "after_round": after,
                "until_round": len(soak.machines.rounds()),
                "seconds": round(time.monotonic() - began),
                "what": words,
            }
        )
        say(f"soak: after round {after}: {words}")
    return rows


def problems_of(
    soak: Soak, rounds: int, sizes_at_end: Mapping[str, int], samples: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return what is not as it should be once the run has ended; nothing if all is well."""
    lines = [json.loads(line) for line in (soak.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = json.loads((soak.run / "summary.json").read_text(encoding="utf-8"))
    ledger = (soak.run / "ledger.jsonl").read_text(encoding="utf-8")
    logs = (soak.directory / "home" / "server" / RUN).glob("superlink.log*")  # it may have become an older one
    superlink = "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
    checks = {
        "all rounds and the closing one": [line["round"] for line in lines] == list(range(1, rounds + 2)),
        "a complete run": bool(summary["complete"]),
        "each client in each round": all(
            [client["name"] for client in line["clients"]] == list(CLIENTS) for line in lines
        ),
        "no client that started again without its state": not any("restarted" in line for line in lines),
        "the client whose data changed": summary.get("data_changed") == [CLIENTS[0]],
        "the pause": "that count for nobody" in superlink,
        "the full disk": not soak.disk or f"{CLIENTS[-1]}: no-room" in ledger,
        "clients that still run": all(
            soak.machines.running[f"join{number}"].poll() is None for number in range(len(CLIENTS))
        ),
    }
    for kind, (of_round, of_client) in GROWING.items():
        expected = of_round + of_client * len(CLIENTS)
        checks[f"{kind} of about {expected} bytes a round"] = (
            expected / MARGIN <= sizes_at_end[kind] / rounds <= MARGIN * expected
        )
    settled = [sample["bytes"] for sample in samples if sample["round"] >= SETTLED]
    for kind in sorted(BOUNDED) if len(settled) >= 4 else []:
        if "log" not in kind:  # of logs, a bound of 10 MB is not reached
            half, all_ = (max(part.get(kind, 0) for part in some) for some in (settled[: len(settled) // 2], settled))
            checks[f"{kind} bounded ({half} bytes, then {all_})"] = all_ <= MARGIN * half
    return [name for name, well in checks.items() if not well]


def soak_result(rounds: int, pause: float, directory: Path) -> dict[str, Any]:
    """Run everything in a directory, and return the result."""
    began, load = time.monotonic(), os.getloadavg()[2]
    every = max(1, rounds // SAMPLES)
    samples: list[dict[str, Any]] = []
    over = threading.Event()
    with small_disk(ROOM) as disk:
        soak = Soak(directory, rounds, disk, pause)
        arguments = (soak.run / "metrics.jsonl", soak.directories(), soak.processes, over, samples, len(CLIENTS), every)
        watcher = threading.Thread(target=watch, args=arguments)
        watcher.start()
        try:
            rows = play_events(soak, rounds)
            soak.machines.await_end(rounds * 20.0)
            over.set()
            watcher.join()
            problems = problems_of(soak, rounds, sizes(soak.directories(), len(CLIENTS)), samples)
        finally:
            over.set()
            soak.machines.stop_all()
    return {
        "rounds": rounds,
        "clients": len(CLIENTS),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seconds": round(time.monotonic() - began),
        "load": [round(load, 1), round(os.getloadavg()[2], 1)],
        "problems": problems,
        "events": rows,
        "every": every,
        "samples": samples,
    }


def main() -> None:
    """Run, print or store the result, and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--pause", type=float, default=PAUSE, help="seconds for which the server is paused")
    parser.add_argument("--store", action="store_true", help="write tools/results/soak.json and soak.md")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the machines end, too
    with tempfile.TemporaryDirectory(prefix="sepal-soak-") as scratch:
        result = soak_result(options.rounds, options.pause, Path(scratch))
    if options.store:
        (RESULTS / "soak.json").write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
        (RESULTS / "soak.md").write_text(page(result), encoding="utf-8")
    say(page(result))
    sys.exit(bool(result["problems"]))


if __name__ == "__main__":
    main()
