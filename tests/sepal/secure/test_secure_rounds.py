"""Rounds of secure sums: exact for every pattern of drops, void below the threshold, and what a client refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sepal.errors import ProtocolError, StateError
from sepal.secure import client as client_module
from sepal.secure import formats, masks, shamir
from sepal.secure import server as server_module
from sepal.secure.keys import KEY, KeyPairs, public_of
from sepal.secure.ring import Ring, Sum, rounded, scale
from sepal.secure.server import Members
from tests.sepal.secure.rounds import KEYS, MASK, SHARE, UNMASK, Memory, Round, added


def round_of(count, size=3, **more):
    updates = {f"client-{number:02d}": np.linspace(-1, 1, size) * (number + 1) / count for number in range(count)}
    return Round(updates, **more)


def plain_sum(round, names, asked):
    """Return what the sum is to be: the integers of the clients in it, without masks."""
    ring, factor = Ring(3, round.bits), scale(round.bits, asked, round.range) / asked
    vectors = [rounded(round.opening(name).update, factor, round.opening(name).rounding) for name in names]
    return ring.centred(ring.vector(np.sum(vectors, axis=0), []))[0]


NAMES = [f"client-{number:02d}" for number in range(7)]
DROPS = [
    {},
    *({name: step} for name in NAMES for step in (KEYS, SHARE, MASK, UNMASK)),
    *(
        dict(zip(pair, steps, strict=True))
        for pair in ((NAMES[0], NAMES[6]), (NAMES[3], NAMES[2]))
        for steps in product((KEYS, SHARE, MASK, UNMASK), repeat=2)
    ),
    *({NAMES[0]: SHARE, NAMES[3]: MASK, NAMES[5]: step} for step in (KEYS, SHARE, MASK, UNMASK)),
]


@pytest.mark.parametrize("bits", [16, 32])
def test_the_sum_is_exact_for_every_pattern_of_drops_or_the_round_is_void(bits):
    for lost in DROPS[bits == 16 :: 2]:
        round = round_of(7, bits=bits)
        asked = 7 - sum(step == KEYS for step in lost.values())
        if 7 - len(lost) < 2 * asked // 3 + 1:
            with pytest.raises((AssertionError, ProtocolError)):
                round.run(lost)
            continue
        vector, names = round.run(lost)
        assert len(names) == 7 - sum(step < UNMASK for step in lost.values())
        entries, figures = Ring(3, bits).centred(vector)
        assert (entries.tolist(), figures) == (plain_sum(round, names, asked).tolist(), []), lost


def test_figures_are_summed_too():
    figures = {f"client-{number:02d}": (number, 0.25 * number) for number in range(4)}
    vector, names = round_of(4, figures=figures).run({"client-02": MASK})
    assert names == ["client-00", "client-01", "client-03"]
    unit = (2**31 - 1) // 4
    # counts 0 + 1 + 3; shares 0 + .25 + .75, each ⌊share·L + ½⌋
    assert Ring(3, 32, 2).centred(vector)[1] == [4, int(0.25 * unit + 0.5) + int(0.75 * unit + 0.5)]


def test_a_sum_of_figures_alone():
    figures = {f"client-{number:02d}": (number,) for number in range(3)}
    assert Ring(0, 32, 1).centred(round_of(3, size=0, figures=figures).run()[0])[1] == [3]


@pytest.mark.parametrize(
    ("clients", "colluders", "left", "void"),
    [
        (3, 1, 3, False),
        (3, 1, 2, True),
        (6, 0, 5, False),
        (6, 0, 4, True),
        (6, 3, 5, False),
        (6, 4, 5, True),
        (6, 4, 6, False),  # max(t, c + 2) with t = 5
        (2, 0, 2, True),
    ],
)
def test_a_round_is_void_below_the_threshold_and_what_colluders_could_subtract(clients, colluders, left, void):
    assert bool(round_of(clients, colluders=colluders).members().too_few(left)) == void


@pytest.mark.parametrize(("clients", "colluders"), [(3, 1), (5, 3), (7, 5), (9, 7), (10, 8)])
def test_what_colluders_hold_gives_no_secret_of_another_client(clients, colluders):
    """⌊2·7/3⌋ + 1 = 5 shares would give the key of a mask, of which each of 5 colluders holds one; see docs."""
    round = round_of(clients, colluders=colluders)
    members = round.members()
    round.masked(members, round.shared(members))
    held = {}
    for number in range(colluders):
        vault = round.vaults[members.names[number]]
        held[number + 1] = client_module._unpacked(vault.data.partition(b"\n")[2]).shares[clients - 1]
    keys = {holder: shares[shamir.SHARE :] for holder, shares in held.items()}
    try:
        rebuilt = shamir.combine(keys, shamir.lagrange(list(keys)))
    except ProtocolError:  # those of no secret
        return
    assert public_of(rebuilt) != members.members[-1].public[KEY:]


def test_two_rounds_with_one_seed_have_other_masks_and_the_same_sum():
    first, second = round_of(4), round_of(4)
    assert first.run()[0] == second.run()[0]
    asked = [bytes(vault.written[-2]) for round in (first, second) for vault in round.vaults.values()]
    assert len(set(asked)) == len(asked)


def test_no_key_and_no_share_occurs_in_two_rounds():
    round = round_of(4)
    round.run()
    before = [vault.written[0] for vault in round.vaults.values()]
    sessions = [client_module._unpacked(data.partition(b"\n")[2]) for data in before]
    round.number = 2
    round.run()
    for vault, session in zip(round.vaults.values(), sessions, strict=True):
        again = client_module._unpacked(vault.written[4].partition(b"\n")[2])
        assert again.round == 2
        assert not {session.encryption, session.masking, session.public} & {
            again.encryption,
            again.masking,
            again.public,
        }


# The worked example over Z_256: three clients, t = 2, client 3 is lost after its shares. Clients 1, 2, 3 of the example
# are ids 0, 1, 2. f(i) = secret + c·i over GF(257).
INPUTS = {"1": [10, 200], "2": [20, 100], "3": [5, 7]}
B, S = {"1": 11, "2": 22, "3": 33}, {"1": 101, "2": 102, "3": 103}
OWN = {11: [37, 250], 22: [99, 4], 33: [150, 60]}
PAIR = {(0, 1): [200, 17], (0, 2): [45, 131], (1, 2): [78, 90]}
SLOPES = {11: 5, 22: 7, 33: 9, 101: 40, 102: 50, 103: 60}


@pytest.fixture
def example(monkeypatch):
    number = lambda secret: int.from_bytes(secret, "little")  # noqa: E731
    monkeypatch.setattr(shamir, "PRIME", 257)
    for module in (client_module, server_module, formats):
        monkeypatch.setattr(module, "threshold", lambda clients, colluders: 2)
    monkeypatch.setattr(
        client_module,
        "split",
        lambda secret, needed, places: shamir.shares_of([number(secret), SLOPES[number(secret)]], places),
    )
    own = lambda b, context, client, commitment, size: bytes(OWN[number(b)])  # noqa: E731
    pair = lambda private, public, context, one, other, size: bytes(PAIR[min(one, other), max(one, other)])  # noqa: E731
    for module in (client_module, server_module):
        monkeypatch.setattr(module, "own_mask", own)
        monkeypatch.setattr(module, "pair_mask", pair)
    monkeypatch.setattr(client_module, "rounded", lambda change, factor, seed: change.astype(np.int64))
    round = Round(INPUTS, bits=8, range=200.0)
    members = round.members()
    for name, vault in round.vaults.items():  # the example's secrets in place of drawn ones
        session = client_module._unpacked(vault.data.partition(b"\n")[2])
        masking = S[name].to_bytes(32, "little")
        round.client(name)._write(client_module.replace(session, masking=masking))
    public = {S[member.name]: member.public[32:] for member in members.members}
    monkeypatch.setattr(server_module, "public_of", lambda private: public[number(private)])
    ciphertexts = {}
    for place, name in enumerate(members.names):
        monkeypatch.setattr(client_module.os, "urandom", lambda size, name=name: B[name].to_bytes(size, "little"))
        data, scalars = members.share_question(place)
        ciphertexts[place] = members.read_ciphertexts(place, round.client(name).answer("share", 1, data, scalars))
    return round, members, ciphertexts


def test_the_worked_example(example):
    round, members, ciphertexts = example
    masked = round.masked(members, ciphertexts, lost={"3"})
    assert {number: list(vector) for number, vector in masked.items()} == {0: [36, 86], 1: [253, 177]}
    total = added(members.ring, masked.values())
    assert list(total) == [33, 7]
    answers = round.answers(members, {0, 1, 2}, {0, 1})
    shares = {holder: {d: int.from_bytes(s, "little") for d, s in own.items()} for holder, own in answers.items()}
    assert shares == {0: {0: 16, 1: 29, 2: 163}, 1: {0: 21, 1: 36, 2: 223}}
    assert list(members.unmask(total, {0, 1, 2}, {0, 1}, answers)) == [30, 44]


def test_the_worked_example_late_input_and_second_input(example):
    round, members, ciphertexts = example
    late = round.masked(members, ciphertexts)[2]
    assert list(late) == [32, 102]
    without_pairs = Sum(members.ring, late)
    without_pairs.add(bytes(PAIR[0, 2]))
    without_pairs.add(bytes(PAIR[1, 2]))
    assert list(without_pairs.vector()) == [155, 67]  # x3 + PRG(b3): still masked
    without_pairs.subtract(bytes(OWN[33]))
    assert list(without_pairs.vector()) == INPUTS["3"]
    # client 1 again with [12, 199] and the same masks would be [38, 85], and [38, 85] - [36, 86] = [2, -1]
    question = members.mask_question(0, ciphertexts)
    assert list(round.client("1").answer("mask", 1, question, {})) == [36, 86]
    with pytest.raises(StateError, match="another sum would tell its update"):
        round.client("1").begin(round.opening("1", update=np.array([12, 199], np.float32), commitment=b"x" * 32))


# What a client refuses


def shared_round(count=5, **more):
    round = round_of(count, **more)
    members = round.members()
    return round, members, round.shared(members)


def test_the_same_question_gets_the_same_bytes_also_from_a_new_process():
    round, members, ciphertexts = shared_round()
    first = round.masked(members, ciphertexts)
    counted = set(first)
    answers = round.answers(members, counted, counted)
    round.clients.clear()  # what is left is in the vaults
    assert round.shared(members) == ciphertexts
    assert round.masked(members, ciphertexts) == first
    assert round.answers(members, counted, counted) == answers


@pytest.mark.parametrize("step", ["share", "mask", "unmask"])
def test_another_question_in_a_step_is_refused(step):
    round, members, ciphertexts = shared_round()
    inputs = round.masked(members, ciphertexts)
    round.answers(members, set(inputs), set(inputs))
    client = round.client("client-00")
    data, scalars = members.share_question(0)
    fewer = {number: own for number, own in ciphertexts.items() if number != 4}
    other = {
        "share": (data, {**scalars, "weight": 0.5}),
        "mask": (members.mask_question(0, fewer), {}),
        "unmask": (members.unmask_question(set(inputs), set(inputs) - {4}), {}),
    }[step]
    with pytest.raises(ProtocolError, match=f"{step}: expected the same question as before"):
        client.answer(step, 1, *other)


def test_a_step_before_its_turn_is_refused():
    round = round_of(4)
    members = round.members()
    with pytest.raises(ProtocolError, match="step: expected share, got unmask"):
        round.client("client-00").answer("unmask", 1, b"\x0f", {})
    with pytest.raises(ProtocolError, match="round: expected 1"):
        round.client("client-00").answer("share", 2, *members.share_question(0))


def test_both_secrets_of_a_client_are_never_given():
    round, members, ciphertexts = shared_round()
    inputs = round.masked(members, ciphertexts)
    present = set(inputs)
    given = members.read_shares(
        present, round.client("client-00").answer("unmask", 1, members.unmask_question(present, present), {})
    )
    assert all(len(share) == shamir.SHARE for share in given.values())
    with pytest.raises(ProtocolError, match="the same question as before"):
        round.client("client-00").answer("unmask", 1, members.unmask_question(present, present - {3}), {})


def test_a_round_of_which_a_masked_input_has_left_cannot_begin_again_nor_one_before_it():
    round, members, ciphertexts = shared_round(number=4)
    round.masked(members, ciphertexts)
    for number in (4, 3):
        with pytest.raises(StateError, match=f"round: expected a round after 4, .*, got {number}"):
            round.client("client-00").begin(round.opening("client-00", round=number))
    assert round.client("client-00").begin(round.opening("client-00", round=5))


def test_a_client_that_forgets_its_secrets_still_knows_of_which_rounds_an_input_has_left():
    round = round_of(3)
    round.run()
    client = round.client("client-00")
    client.forget()
    with pytest.raises(StateError, match="a round after 1"):
        client.check(1)
    client.check(2)


def test_a_round_may_begin_anew_before_a_masked_input_left_and_then_has_other_keys():
    round = round_of(4)
    first = round.client("client-00").begin(round.opening("client-00"))
    assert round.client("client-00").begin(round.opening("client-00")) == first
    for change in ({"request": "another"}, {"commitment": b"c" * 32}):
        assert round.client("client-00").begin(round.opening("client-00", **change)) != first


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda keys, scalars: ({**keys, 2: keys[1]}, scalars), "keys that occur twice"),
        (lambda keys, scalars: ({**keys, 2: keys[1][:32] + keys[2][32:]}, scalars), "keys that occur twice"),
        (lambda keys, scalars: (keys, {**scalars, "id": 1}), "ids from 0 on"),
        (lambda keys, scalars: (keys, {**scalars, "update": "00"}), "own commitment"),
        (lambda keys, scalars: (keys, {**scalars, "weight": 99.0}), "weight"),
        (lambda keys, scalars: ({1: keys[1]}, scalars), "at least 3 clients"),
    ],
)
def test_a_question_for_shares_that_no_honest_server_asks_is_refused(change, why):
    round = round_of(4)
    members = round.members()
    data, scalars = members.share_question(0)
    keys, scalars = change(formats.read_keys("x", data), scalars)
    with pytest.raises(ProtocolError, match=why):
        round.client("client-00").answer("share", 1, formats.write_entries(keys), scalars)


def test_the_clients_own_key_under_another_id_is_refused():
    round = round_of(4)
    members = round.members()
    data, scalars = members.share_question(0)
    keys = {**formats.read_keys("x", data), 3: members.members[0].public}
    with pytest.raises(ProtocolError, match="keys that occur twice"):
        round.client("client-00").answer("share", 1, formats.write_entries(keys), scalars)


def test_too_few_clients_are_refused_in_each_step():
    round, members, ciphertexts = shared_round(5)  # t = 4
    few = {number: ciphertexts[number] for number in (0, 1, 2)}
    with pytest.raises(ProtocolError, match="mask: expected at least 4 of 5 clients, got 3"):
        round.client("client-00").answer("mask", 1, members.mask_question(0, few), {})
    inputs = round.masked(members, ciphertexts)
    with pytest.raises(ProtocolError, match="unmask: expected at least 4 of 5 clients, got 3"):
        round.client("client-00").answer("unmask", 1, members.unmask_question(set(inputs), {0, 1, 2}), {})
    with pytest.raises(ProtocolError, match="a sum that has this client in it"):
        round.client("client-00").answer("unmask", 1, members.unmask_question(set(inputs), {1, 2, 3, 4}), {})


@pytest.mark.parametrize("change", [{"model": "another"}, {"range": 2.0}, {"bits": 16}, {"colluders": 1}])
def test_a_client_that_was_told_otherwise_sends_nothing(change):
    round = round_of(5)
    round.client("client-00").begin(round.opening("client-00", **change))
    clients_own = round.opening
    round.opening = lambda name, **more: clients_own(name, **{**(change if name == "client-00" else {}), **more})
    members = round.members()
    ciphertexts = round.shared(members)
    with pytest.raises(
        ProtocolError, match=r"mask: expected shares of clients that were told the same .* got 4 that cannot be opened"
    ):
        round.client("client-00").answer("mask", 1, members.mask_question(0, ciphertexts), {})
    others = round.masked(members, ciphertexts, lost={"client-00"})
    answers = round.answers(members, set(ciphertexts), set(others))
    with pytest.raises(ProtocolError, match="client-00: shares: expected at least 4, got 0"):
        members.unmask(added(members.ring, others.values()), set(ciphertexts), set(others), answers)


def test_shares_that_do_not_give_the_mask_key_make_the_round_void():
    round, members, ciphertexts = shared_round(5)
    inputs = round.masked(members, ciphertexts, lost={"client-04"})
    answers = round.answers(members, set(ciphertexts), set(inputs))
    answers[0] = {**answers[0], 4: (5).to_bytes(33, "little")}
    with pytest.raises(ProtocolError, match="client-04: share"):
        members.unmask(added(members.ring, inputs.values()), set(ciphertexts), set(inputs), answers)


def test_secrets_are_erased_once_they_are_not_needed():
    round, members, ciphertexts = shared_round()
    vault = round.vaults["client-00"]
    before = client_module._unpacked(vault.data.partition(b"\n")[2])
    secrets = [before.encryption, before.masking, before.b, before.update]
    assert all(secret and secret in vault.data for secret in secrets)
    inputs = round.masked(members, ciphertexts)
    assert not any(secret in vault.data for secret in secrets)
    held = client_module._unpacked(vault.data.partition(b"\n")[2]).shares
    assert len(held) == 5
    round.answers(members, set(inputs), set(inputs))
    after = client_module._unpacked(vault.data.partition(b"\n")[2])
    assert after.shares == {}
    assert not any(
        both[shamir.SHARE :] in vault.data for both in held.values()
    )  # of the mask keys, which nobody asked for


def test_a_client_without_its_secrets_says_so():
    round, members, ciphertexts = shared_round()
    round.vaults["client-00"].data = b""
    with pytest.raises(ProtocolError, match="its secrets are lost"):
        round.client("client-00").answer("mask", 1, members.mask_question(0, ciphertexts), {})


def test_a_damaged_file_of_secrets_is_not_begun_anew():
    round, members, ciphertexts = shared_round()
    round.masked(members, ciphertexts)
    vault = round.vaults["client-00"]
    vault.data = vault.data[:-1] + bytes([vault.data[-1] ^ 1])
    with pytest.raises(StateError, match="secrets of secure sums"):
        round.client("client-00").begin(round.opening("client-00", round=9))


def test_bytes_are_those_of_the_formula():
    round = round_of(5, size=7, figures={f"client-{n:02d}": (1, 2, 3) for n in range(5)})
    members = round.members()
    questions = [members.share_question(number)[0] for number in range(5)]
    ciphertexts = round.shared(members)
    mask_questions = [members.mask_question(number, ciphertexts) for number in range(5)]
    inputs = round.masked(members, ciphertexts)
    present = set(inputs)
    unmask_question = members.unmask_question(present, present)
    reply = round.client("client-00").answer("unmask", 1, unmask_question, {})
    k, n, d, b, m = 4, 5, 7, 32, 3
    assert {len(member.public) for member in members.members} == {64}
    assert {len(q) for q in questions} == {68 * k}
    assert {len(formats.write_entries(own)) for own in ciphertexts.values()} == {86 * k}
    assert {len(q) for q in mask_questions} == {86 * k}
    assert {len(vector) for vector in inputs.values()} == {d * b // 8 + 4 * m}
    assert len(unmask_question) == -(-n // 8)
    assert len(reply) == 37 * n


def test_a_masked_input_tells_nothing_of_its_update():
    # all entries are equal; of 10,240 low bytes one value is missing with a probability of 256·e^-40
    seen = set()
    for _ in range(5):
        round = Round({name: np.ones(2048) for name in "abc"})
        members = round.members()
        seen |= set(next(iter(round.masked(members, round.shared(members)).values()))[::4])
    assert len(seen) == 256


def test_an_unchanged_vault_is_one_write_a_step():
    round = round_of(3)
    round.run()
    assert {len(vault.written) for vault in round.vaults.values()} == {4}
    assert isinstance(round.vaults["client-00"], Memory)
    assert KeyPairs.new() != KeyPairs.new()
    assert masks.packed(1, 2) == b"\1\0\0\0\2\0\0\0"


@pytest.mark.parametrize("weight", [0.0, 1e-9, 2.0])
def test_a_client_is_summed_with_the_weight_that_it_knows_to_be_its_own(weight):
    """A server that weighs all others by 0 would read one client's update from the sum, without any accomplice."""
    round = round_of(4)
    honest = round.members()
    members = tuple(replace(m, weight=weight if number else 1.0) for number, m in enumerate(honest.members))
    total = sum(member.weight for member in members)
    lying = Members(members, replace(honest.terms, total=total))
    with pytest.raises(ProtocolError, match="weight: expected 1, this client's own, got"):
        round.shared(lying)
