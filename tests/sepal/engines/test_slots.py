"""Key slots: one client each, the same one after a restart."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from sepal.engines.flower.slots import claimed
from sepal.errors import ConfigError, StateError


@pytest.fixture
def certs(tmp_path):
    for name in ("client-00000", "client-00001"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
        (tmp_path / "nodes" / name / "key").touch()
    return tmp_path / "nodes"


def test_each_client_gets_a_slot_of_its_own_and_no_more_than_there_are(certs, tmp_path):
    with ExitStack() as stack:
        slots = [stack.enter_context(claimed(certs, tmp_path / "slots", f"host-{n}")) for n in range(2)]
        assert [(slot.number, slot.count, slot.name) for slot in slots] == [
            (0, 2, "client-00000"),
            (1, 2, "client-00001"),
        ]
        with pytest.raises(StateError, match="expected a free one of 2 slots, got all in use by other clients"):
            stack.enter_context(claimed(certs, tmp_path / "slots", "host-2", patience=0, most=0.1))


def test_a_client_that_is_started_again_gets_its_slot_back(certs, tmp_path):
    with claimed(certs, tmp_path / "slots", "first"), claimed(certs, tmp_path / "slots", "second"):
        pass
    for _ in range(2):
        with claimed(certs, tmp_path / "slots", "second") as slot:
            assert slot.name == "client-00001"


def test_the_slot_of_a_host_that_does_not_come_back_is_taken_after_a_while(certs, tmp_path):
    for number in range(2):
        with claimed(certs, tmp_path / "slots", f"gone-{number}"):
            pass
    with pytest.raises(StateError), claimed(certs, tmp_path / "slots", "new", patience=9, most=0.1):
        pass
    with claimed(certs, tmp_path / "slots", "new", patience=0) as slot:
        assert slot.name == "client-00000"


def test_two_clients_of_one_host_get_two_slots(certs, tmp_path):
    with claimed(certs, tmp_path / "slots", "host") as first, claimed(certs, tmp_path / "slots", "host") as second:
        assert {first.number, second.number} == {0, 1}


def test_no_keys_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^--claim: expected --certs with a directory of node keys"):
        claimed(tmp_path, tmp_path / "slots", "host").__enter__()
