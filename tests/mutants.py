"""Mutants that the tests must kill: single changes of the code, each with the tests that notice it.

``make -C tools mutants`` copies the working tree, applies each mutant to the copy, runs its test there and expects it
to fail. Each test runs in a forked process, so that torch is imported once. ``python -m tests.mutants NAME …``
runs some. Add a line when a test is written for an error that the others did not notice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import flwr.serverapp  # noqa: F401  (the slow imports, before the fork)
import pandas  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("sepal", "models", "strategies", "client_app", "server_app", "tests")


class Mutant(NamedTuple):
    """One change of the code.

    Attributes:
        name: What the mutant breaks.
        file: The changed file, relative to the repository.
        old: Text that occurs once in it.
        new: Its replacement.
        tests: A pytest node id; the test that must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


TWO = "tests/strategies/test_two_rounds.py::test_"
MULTIPLY_ADDS = "tests/strategies/test_multiply_adds.py::test_"
BASELINES = "strategies/baselines/"
CAPTURED = "tests/test_captured_methods.py::test_the_body_of_captured_steps_trains_as_the_usual_loop"
FT = TWO + "fedavg_ft_tunes_for_its_epochs_and_uploads_the_model_before"
STAYS = TWO + "what_stays_with_the_client_is_used_in_the_second_round"
PRIVATE = "tests/strategies/test_private_uploads.py::test_"
STRUCTURED = "tests/sepal/wire/test_structured_fuzz.py::test_"
APFL = TWO + "apfl_goes_on_from_its_personal_model_and_its_alpha"

MUTANTS = (
    Mutant(
        "captured steps leave what pFedMe's clients upload as it was",
        BASELINES + "pfedme.py",
        '    CHANGED: ClassVar[tuple[str, ...]] = ("local",)\n',
        "",
        CAPTURED + "[pfedme]",
    ),
    Mutant(
        "captured steps give FedDST a part of the last batch",
        BASELINES + "feddst.py",
        "self.batch[:] = last()",
        "self.batch[:] = (part[:1] for part in last())",
        CAPTURED + "[feddst]",
    ),
    Mutant(
        "captured steps count no part of Fjord's",
        BASELINES + "fjord.py",
        "self.drawn.extend(zip(self.choices(batches), batches, strict=True))",
        "pass",
        CAPTURED + "[fjord]",
    ),
    Mutant(
        "captured steps train the next client on the examples of the first",
        "sepal/training/programs.py",
        "static[: len(part)].copy_(part)",
        "static[: len(part)].copy_(part) if not static.any() else None",
        CAPTURED + "[fedavg]",
    ),
    Mutant(
        "subfedavg's last step on weights is of the candidate from before the channel cut",
        "strategies/subfedavg/client.py",
        "after |= self.prunable.prune_weights(weights, after, self.capacity)",
        "after = self.prunable.within({**after, **{p.name: last[p.name] for p in self.prunable.weights}})",
        "tests/strategies/test_subfedavg.py::"
        "test_the_last_step_on_weights_is_taken_from_what_a_channel_cut_of_the_same_round_leaves",
    ),
    Mutant(
        "subfedavg takes no notice of the capacity",
        "strategies/subfedavg/client.py",
        "return self.prunable.fitted(weights, self.gated(weights, masks, first), self.capacity)",
        "return self.gated(weights, masks, first)",
        "tests/strategies/test_subfedavg_capacity.py::test_every_client_ends_with_a_model_that_fits",
    ),
    Mutant(
        "subfedavg trains pruned entries",
        "strategies/subfedavg/client.py",
        "frozen(network, free)",
        "frozen(network, {name: np.ones_like(mask) for name, mask in free.items()})",
        "tests/strategies/test_subfedavg_models.py::test_pruned_entries_are_not_trained",
    ),
    Mutant(
        "pa3dfl compares with what was generated, not with what was delivered",
        "strategies/pa3dfl/server.py",
        "partial(delivered, coding=self.coding)",
        "lambda values: values",
        "tests/strategies/test_pa3dfl.py::test_where_no_client_changed_anything_the_hypernetwork_stays_to_the_bit",
    ),
    Mutant(
        "pa3dfl averaged by position forgets what no client holds",
        "strategies/pa3dfl/server.py",
        "mean_of_prefixes(uploads, state.personal).over(state.personal)",
        "mean_of_prefixes(uploads, state.personal).over({n: 0 * a for n, a in state.personal.items()})",
        "tests/strategies/test_pa3dfl.py"
        "::test_averaged_by_position_entries_that_nobody_sampled_holds_stay_as_they_were",
    ),
    Mutant(
        "lambda-mix draws the sorted fraction from all rows",
        "sepal/data/partitioners.py",
        "draw_by_class(labels, round(self._fraction * len(labels)), self._rng)",
        "np.sort(self._rng.permutation(len(labels))[: round(self._fraction * len(labels))])",
        "tests/sepal/data/test_partition.py::test_the_sorted_fraction_is_drawn_by_class",
    ),
    Mutant(
        "heterofl averages rows of classes that a client lacks",
        BASELINES + "heterofl.py",
        "parts[p.name] = ((mesh[0][rows], *mesh[1:]), values[rows])",
        "pass",
        "tests/strategies/test_baselines_widths.py::test_two_rounds_of_heterofl_and_fedrolex_by_hand",
    ),
    Mutant(
        "fedrolex's window begins a round early",
        BASELINES + "fedrolex.py",
        "return round - 1",
        "return round",
        "tests/strategies/test_baselines_widths.py::test_two_rounds_of_heterofl_and_fedrolex_by_hand",
    ),
    Mutant(
        "a compressing client drops its residual",
        "sepal/method/compression/client.py",
        "- model + state.residual",
        "- model",
        TWO + "fedstc_adds_its_residual_in_the_second_round",
    ),
    Mutant(
        "a compressing server drops its residual",
        "sepal/method/compression/server.py",
        "self.flat.join(self.inner.model(inner)) - state.held",
        "self.flat.join(self.inner.model(inner)) - before",
        "tests/sepal/protocol/test_compression.py::test_rounds_by_hand_with_a_client_that_misses_one",
    ),
    Mutant(
        "fedscr drops its residual",
        BASELINES + "fedscr.py",
        "- received[p.name] + state.residual[p.name]",
        "- received[p.name]",
        TWO + "fedscr_adds_its_residual_in_the_second_round",
    ),
    Mutant(
        "fedpse drops its residual",
        "strategies/fedpse/client.py",
        " + self.flat.join(state.residual)",
        "",
        TWO + "fedpse_adds_its_residual_and_its_base_in_the_second_round",
    ),
    Mutant(
        "fedpse adds downloads to W_0",
        "strategies/fedpse/client.py",
        "updated(state.base, download",
        "updated(self.setup.weights, download",
        TWO + "fedpse_adds_its_residual_and_its_base_in_the_second_round",
    ),
    Mutant(
        "ditto starts from W_0",
        BASELINES + "ditto.py",
        "self.fit(state.personal, plan",
        "self.fit(self.setup.weights, plan",
        TWO + "ditto_goes_on_from_its_personal_model",
    ),
    Mutant(
        "ditto ignores epochs",
        BASELINES + "ditto.py",
        "epochs=self.hyper.epochs or None",
        "epochs=None",
        TWO + "ditto_epochs_are_passes_of_the_personal_model_only",
    ),
    Mutant(
        "apfl starts from W_0",
        BASELINES + "apfl.py",
        "personal.load(state.personal)",
        "personal.load(self.setup.weights)",
        APFL,
    ),
    Mutant(
        "apfl resets alpha",
        BASELINES + "apfl.py",
        "personal.module, state.alpha,",
        "personal.module, self.hyper.alpha,",
        APFL,
    ),
    Mutant(
        "apfl's received is the global model",
        BASELINES + "apfl.py",
        "download, plan), state.alpha, trained",
        "download, plan), 0.0, trained",
        APFL,
    ),
    Mutant(
        "apfl counts one model's multiply-adds",
        BASELINES + "apfl.py",
        "self.trainer.account(shared.module, epochs * len(self.trainer.y))",
        "pass",
        MULTIPLY_ADDS + "apfl_computes_twice_what_fedavg_does",
    ),
    Mutant(
        "fedper receives W_0's head",
        BASELINES + "fedper.py",
        "{**state.model, **super()",
        "{**self.setup.weights, **super()",
        STAYS,
    ),
    Mutant(
        "fedavg-ft never fine-tunes",
        BASELINES + "fedavg_ft.py",
        'if plan.scalars["finetune"] else',
        "if False else",
        FT,
    ),
    Mutant(
        "fedavg-ft is never told to fine-tune",
        BASELINES + "fedavg_ft.py",
        "bool(every and round % every == 0)",
        "False",
        FT,
    ),
    Mutant(
        "fedavg-ft uploads the tuned model",
        BASELINES + "fedavg_ft.py",
        "Payload(dense(trained.model,",
        "Payload(dense(after.model,",
        FT,
    ),
    Mutant("fedavg-ft ignores epochs", BASELINES + "fedavg_ft.py", "epochs=self.hyper.epochs, ", "", FT),
    Mutant(
        "feddst counts dense multiply-adds",
        BASELINES + "feddst.py",
        "purpose=purpose, density=share",
        "purpose=purpose",
        MULTIPLY_ADDS + "feddst_computes_by_the_density_of_each_layer",
    ),
    Mutant(
        "dmpfl trains from W_0 in phase 2b",
        "strategies/dmpfl/client.py",
        "personal = spread(state.personal, mask)",
        "personal = spread(take(self.setup.weights, mask), mask)",
        TWO + "dmpfl_keeps_its_personal_weights_from_phase_1_to_phase_2b",
    ),
    Mutant(
        "subfedavg forgets its mask",
        "strategies/subfedavg/client.py",
        "return unpack(state.kept, self.prunable.parts)",
        "return unpack({}, self.prunable.parts)",
        TWO + "subfedavg_prunes_what_is_left_of_its_mask_in_the_second_round",
    ),
    Mutant(
        "a predictor adds .01 to all weights",
        "sepal/training/trainer.py",
        "network.load(weights)\n        return NetworkPredictor",
        "network.load({name: value + 0.01 for name, value in weights.items()})\n        return NetworkPredictor",
        TWO + "a_predictor_has_exactly_the_weights_that_it_was_given",
    ),
    Mutant(
        "evaluation changes the client's weights",
        "sepal/method/client_base.py",
        "return self.trainer.predictor(weights) if weights else None",
        "[value.__iadd__(0.01) for value in weights.values() if value.flags.writeable]\n"
        "        return self.trainer.predictor(weights) if weights else None",
        "tests/test_methods_common.py::test_a_killed_server_resumes_to_the_same_end[fedper-3]",
    ),
    Mutant(
        "an upload's recorded payload is halved",
        "sepal/server/round_ledger.py",
        "payload=len(content.data),",
        'payload=len(content.data) // (2 if direction == "up" else 1),',
        "tests/test_methods_common.py::test_the_ledger_counts_the_encoded_bytes[fedavg]",
    ),
    Mutant(
        "fedpse selects before the noise is added",
        "strategies/fedpse/client.py",
        "index = self._top_k(released.noised)",
        "index = self._top_k(released.clipped)",
        PRIVATE + "noise_comes_before_the_selection[fedpse]",
    ),
    Mutant(
        "a compressing client selects before the noise is added",
        "sepal/method/compression/client.py",
        "update = compress(released.noised, self.how",
        "update = compress(released.clipped, self.how",
        PRIVATE + "noise_comes_before_the_selection[fedstc]",
    ),
    Mutant(
        "noise depends on the round and not on the update",
        "sepal/training/privacy.py",
        'hmac.digest(key, head + content + request, "sha256")',
        'hmac.digest(key, head + request, "sha256")',
        "tests/sepal/training/test_privacy.py::test_the_difference_of_two_uploads_never_cancels_the_noise",
    ),
    Mutant(
        "a deployed client's noise comes from the seed",
        "client_app/app.py",
        'secret = b"" if on_one_machine() else store.secret.encode()',
        'secret = b""',
        "tests/client_app/test_privacy.py::test_a_deployed_clients_noise_is_a_secret_of_its_home",
    ),
    Mutant(
        "an upload's number of entries is not compared with its schema",
        "sepal/wire/codec.py",
        "if not fewest <= entry.count <= most and not _is_known(support, spec):",
        "if False:",
        STRUCTURED + "whatever_is_changed_in_an_upload_it_is_refused_or_within_its_schema",
    ),
    Mutant(
        "a scalar's upper bound is not checked",
        "sepal/protocol/payloads.py",
        "if greatest is not None and value > greatest:",
        "if False:",
        STRUCTURED + "whatever_is_changed_in_an_upload_it_is_refused_or_within_its_schema",
    ),
)


def check(mutant: Mutant, copy: Path) -> str:
    """Return "killed", or why the mutant was not."""
    original = (ROOT / mutant.file).read_text()
    if original.count(mutant.old) != 1:
        return f"does not apply: its text occurs {original.count(mutant.old)} times in {mutant.file}"
    (copy / mutant.file).write_text(original.replace(mutant.old, mutant.new))
    try:
        code, output = run([mutant.tests], copy)
    finally:
        (copy / mutant.file).write_text(original)
    if code == 1:
        return "killed"
    return "survived" if code == 0 else f"was not tested: {output[-300:]}"


def run(tests: list[str], copy: Path, seconds: int = 0) -> tuple[int, str]:
    """Run ``tests`` in the copy, in a forked process; return pytest's exit code and output.

    After ``seconds``, if above 0, the process is ended by a signal, and the code is negative.
    """
    log = copy / "log"
    child = os.fork()
    if not child:
        signal.alarm(seconds)
        code = 3
        stream = log.open("w")
        redirected = contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream)
        with contextlib.suppress(BaseException), stream, redirected[0], redirected[1]:
            for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
                del sys.modules[name]  # the parent's are those of the working tree
            sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
            os.chdir(copy)
            code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), log.read_text()


def main(names: list[str]) -> int:
    """Check the mutants with these names, or all; return 1 if one was not killed."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    if len(chosen) < len(names):
        print(f"expected names among: {', '.join(mutant.name for mutant in MUTANTS)}")
        return 2
    alive = 0
    sys.dont_write_bytecode = True  # a mutant may be as old and as long as the original
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary)
        for part in COPIED:
            shutil.copytree(ROOT / part, copy / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        code, output = run(sorted({mutant.tests for mutant in chosen}), copy)
        if code:
            print(f"a test fails without a mutant: {output[-1000:]}")
            return 2
        for mutant in chosen:
            verdict = check(mutant, copy)
            alive += verdict != "killed"
            print(f"{mutant.name}: {verdict}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
