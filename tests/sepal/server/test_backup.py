"""A server that comes back from a copy of its files that is rounds old, and clients that kept what it asks for."""

from __future__ import annotations

import shutil

import pytest

from sepal.errors import ConfigError, RosterError, StateError
from sepal.protocol.messages import MOST_VERSIONS, version_round
from sepal.server.roster import _lacks
from sepal.server.run_store import DiskRunStore
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Killed
from tests.sepal.server.test_resume import outcome

ROUNDS, KILLED_AT = 130, 120


def federation(directory=None, **settings):
    values = {"checkpoint_every": 5, "evaluate_every": 0, "timeout": 5.0, "clients_per_round": 2, **settings}
    return Federation(FAKES["lag"][0], rounds=ROUNDS, settings=values, directory=directory)


def serve(subject, directory, observer):
    keep = subject.setup.config.keep_versions
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


def restored(tmp_path, age, killed_again=0, **settings):
    """Kill a server, lose its disk, and go on from a copy that is ``age`` rounds old.

    With ``killed_again``, the server that goes on is killed in that round, and another one goes on from its files.
    """
    subject, server = federation(tmp_path / "clients", **settings), tmp_path / "server"
    copies = Copies(server, KILLED_AT - 1 - age)
    subject.killed_at = KILLED_AT
    with pytest.raises(Killed):
        serve(subject, server, copies)
    shutil.rmtree(server)
    copies.target.rename(server)
    if killed_again:
        subject.killed_at = killed_again
        with pytest.raises(Killed):
            serve(subject, server, Copies(server, 0))
    subject.killed_at = 0
    return serve(subject, server, Copies(server, 0))


@pytest.mark.parametrize("age", [1, 10, 100])
def test_a_copy_that_is_rounds_old_ends_as_if_nothing_had_been_lost(age, tmp_path):
    whole = federation().run()
    assert outcome(restored(tmp_path, age, keep_versions=100)) == outcome(whole)


def test_without_the_key_the_clients_have_not_kept_the_versions_and_the_run_says_so(tmp_path):
    with pytest.raises(
        StateError, match=r"clients: expected clients that have the states of round 19, .* 4 that have lost"
    ):
        restored(tmp_path, 100)


@pytest.mark.parametrize("killed_again", [0, 20], ids=["", "killed in that very round"])
def test_clients_that_have_lost_their_states_start_again_if_the_run_says_so(killed_again, tmp_path, caplog):
    strategy = restored(tmp_path, 100, killed_again, lost_states="restart")
    assert strategy.progress.closed
    records = {record.round: record for record in strategy.store.records(ROUNDS)}
    names = tuple(f"client-{number}" for number in range(4))
    assert {round: record.restarted for round, record in records.items() if record.restarted} == {20: names}
    assert (
        "round 20: 4 clients lack their state of that time and start again from the server's model: client-0"
        in caplog.text
    )


@pytest.mark.parametrize("ends", [False, True])
def test_a_client_that_lacks_its_state_ends_no_round_in_which_nobody_asks_it(ends, tmp_path):
    whole, subject, server = federation(), federation(tmp_path / "clients"), tmp_path / "server"
    whole.run()
    asked = {name for round, name in whole.trained if round == 8}
    subject.killed_at = 8
    with pytest.raises(Killed):
        serve(subject, server, Copies(server, 0))
    subject.killed_at = 8
    lacking = min(asked if ends else set(subject.stores) - asked)
    for path in (tmp_path / "clients" / lacking).glob("*-*"):
        path.unlink()
    with pytest.raises(StateError if ends else Killed):
        serve(subject, server, Copies(server, 0))


def test_a_run_with_noise_does_not_let_clients_start_again(tmp_path):
    """The server's copy is older than what they have answered, so ε would leave out what is in between."""
    with pytest.raises(RosterError, match="states of at most round 20: this server goes on from an older copy"):
        restored(tmp_path, 100, **NOISE)


NOISE = {"lost_states": "restart", "privacy": {"noise": 1.0, "clip": 1.0}}


def without_states_of_one(tmp_path, **settings):
    """Return a run that was killed in round 8, and its server's directory; client-1 has lost its states since."""
    subject, server = federation(tmp_path / "clients", **settings), tmp_path / "server"
    subject.killed_at = 8
    with pytest.raises(Killed):
        serve(subject, server, Copies(server, 0))
    subject.killed_at = 0
    for path in (tmp_path / "clients" / "client-1").glob("*-*"):
        path.unlink()
    return subject, server


def test_a_run_with_noise_lets_no_client_begin_anew_that_has_lost_its_states(tmp_path):
    subject, server = without_states_of_one(tmp_path, **NOISE)
    with pytest.raises(ConfigError, match=r"lost-states: expected refuse with privacy\.noise"):
        serve(subject, server, Copies(server, 0))


@pytest.mark.parametrize("settings", [{}, NOISE], ids=["refuse", "restart with noise"])
def test_under_skip_the_rounds_go_on_without_the_clients_that_have_lost_their_states(settings, tmp_path):
    """Its orders fail: no client ends a run for the others by saying that it has lost something."""
    subject, server = without_states_of_one(tmp_path, on_missing="skip", clients_per_round=0, **settings)
    strategy = serve(subject, server, Copies(server, 0))
    records = list(strategy.store.records(ROUNDS))
    assert [len(record.replies) for record in records[6:9]] == [4, 3, 3]


LISTED = ["9-" + 24 * "b", "8-" + 24 * "b"]
FULL = [f"{round}-{24 * 'a'}" for round in range(MOST_VERSIONS + 100, 100, -1)]


@pytest.mark.parametrize(
    ("version", "listed", "lacks"),
    [
        ("", LISTED, False),
        (LISTED[1], LISTED, False),
        ("8-" + 24 * "a", LISTED, True),
        ("700-" + 24 * "a", [""], True),
        ("50-" + 24 * "a", FULL, False),  # a full list has no room for it
        ("150-" + 24 * "b", FULL, True),
        ("50-" + 24 * "a", [*FULL[:-1], "no version"], True),
    ],
)
def test_a_client_lacks_a_version_that_it_does_not_list(version, listed, lacks):
    assert _lacks(version, listed) is lacks


def test_clients_keep_no_more_than_the_key_says(tmp_path):
    subject = federation(tmp_path / "clients", keep_versions=20, clients_per_round=0)
    serve(subject, tmp_path / "server", Copies(tmp_path / "server", 0))
    rounds = {version_round(path.stem) for path in (tmp_path / "clients" / "client-0").glob("*-*.safetensors")}
    assert min(rounds) >= ROUNDS - 20 - 2 * 5 - 1
    assert len(rounds) >= 20
