"""A server that comes back from a copy of its files that is rounds old, and clients that kept what it asks for."""

from __future__ import annotations

import shutil

import pytest

from sepal.errors import SepalError
from sepal.protocol.messages import version_round
from sepal.server.run_store import DiskRunStore
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Killed
from tests.sepal.server.test_resume import outcome

ROUNDS, KILLED_AT = 130, 120


def federation(directory=None, **settings):
    values = {"checkpoint_every": 5, "evaluate_every": 0, "timeout": 5.0, "clients_per_round": 2, **settings}
    return Federation(FAKES["lag"][0], rounds=ROUNDS, settings=values, directory=directory)


def serve(subject, directory, observer):
    keep = subject.task.config.keep_versions
    strategy = subject.server(DiskRunStore(directory, subject.method.server_state, keep))
    strategy._observers = [observer]
    return subject.run(strategy=strategy)


class Copies:
    """Copies the server's files after a round, as a backup does."""

    def __init__(self, source, round):
        self.source, self.copied_round = source, round
        self.target = source.with_name("copy")

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        if record.round == self.copied_round:
            shutil.copytree(self.source, self.target)

    def closed(self, progress, report):
        pass


def restored(tmp_path, age, **settings):
    """Kill a server, lose its disk, and go on from a copy that is ``age`` rounds old."""
    subject, server = federation(tmp_path / "clients", **settings), tmp_path / "server"
    copies = Copies(server, KILLED_AT - 1 - age)
    subject.killed_at = KILLED_AT
    with pytest.raises(Killed):
        serve(subject, server, copies)
    subject.killed_at = 0
    shutil.rmtree(server)
    copies.target.rename(server)
    return serve(subject, server, Copies(server, 0))


@pytest.mark.parametrize("age", [1, 10, 100])
def test_a_copy_that_is_rounds_old_ends_as_if_nothing_had_been_lost(age, tmp_path):
    whole = federation().run()
    assert outcome(restored(tmp_path, age, keep_versions=100)) == outcome(whole)


def test_without_the_key_the_clients_have_not_kept_the_versions_and_the_run_says_so(tmp_path):
    with pytest.raises(SepalError, match="base: expected the state of version"):
        restored(tmp_path, 100)


def test_clients_keep_no_more_than_the_key_says(tmp_path):
    subject = federation(tmp_path / "clients", keep_versions=20, clients_per_round=0)
    serve(subject, tmp_path / "server", Copies(tmp_path / "server", 0))
    kept = {version_round(path.stem) for path in (tmp_path / "clients" / "client-0").glob("*-*.safetensors")}
    assert min(kept) >= ROUNDS - 20 - 2 * 5 - 1
    assert len(kept) >= 20
