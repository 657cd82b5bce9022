"""The built-in data sets, with run-config defaults for each.

Comments cite the section of the paper that a default comes from. Where a paper gives a grid or no value, the choice is
ours and marked so.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

from sepal.data.examples import DatasetInfo, InputKind

# Special tokens of text sources: 0 is padding, 1 is any word outside the vocabulary.
PAD, UNKNOWN, SPECIALS = 0, 1, 2
# Number of token ids (two special ones and the 9,998 most frequent words, as in Keras), and of tokens per review.
IMDB_VOCABULARY, IMDB_LENGTH = 10_000, 256
# AG News: tokens of an article's title and first sentences, which have some 40 words.
AG_NEWS_VOCABULARY, AG_NEWS_LENGTH = 10_000, 128
# Shakespeare: the letters of LEAF (models/utils/language_utils.py), in its order, and the length of a window.
LETTERS = "\n !\"&'(),-.0123456789:;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}"
WINDOW = 80
CHARACTERS = tuple(digits + ascii_uppercase + ascii_lowercase)


def _defaults(model: str, lr: float, *, batch: int, epochs: int, rounds: int, optimizer: str = "sgd") -> dict[str, Any]:
    training: dict[str, Any] = {"batch-size": batch, "local-epochs": epochs, "rounds": rounds}
    return {"model": model, "lr": lr, **training, "optimizer": optimizer}


CATALOGUE: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        # Ours: no paper uses it. Small enough for a demonstration in seconds. Values 0-16 are stored times 255/16.
        DatasetInfo(
            "digits",
            10,
            (1, 8, 8),
            "image",
            False,
            _defaults("digits-cnn", 0.05, batch=16, epochs=1, rounds=30),
            mean=(0.3053,),
            std=(0.3760,),
        ),
        # Sub-FedAvg 4.1: lr .01, batch 10, 5 epochs, 300 rounds (figures 1 and 2; methods page).
        DatasetInfo(
            "mnist",
            10,
            (1, 28, 28),
            "image",
            False,
            _defaults("mnist-cnn", 0.01, batch=10, epochs=5, rounds=300),
            mean=(0.1307,),
            std=(0.3081,),
        ),
        # FedPSE methods page, independent runs: SGD .05, batch 64, 1 epoch; rounds from the listing in its Appendix E.
        DatasetInfo(
            "fashion-mnist",
            10,
            (1, 28, 28),
            "image",
            False,
            _defaults("cnn2", 0.05, batch=64, epochs=1, rounds=100),
            mean=(0.2860,),
            std=(0.3530,),
            class_names=(
                *("T-shirt", "trouser", "pullover", "dress", "coat"),
                *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
            ),
        ),
        # Sub-FedAvg 4.1: LeNet-5, lr .01, batch 10, 5 epochs, 500 rounds.
        DatasetInfo(
            "cifar-10",
            10,
            (3, 32, 32),
            "image",
            False,
            _defaults("lenet5", 0.01, batch=10, epochs=5, rounds=500),
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        ),
        # pFedGate App. G, Table 4 (s = 1): lr .1, batch 128, 1 epoch, 400 rounds.
        DatasetInfo(
            "cifar-100",
            100,
            (3, 32, 32),
            "image",
            False,
            _defaults("cnn-cifar100", 0.1, batch=128, epochs=1, rounds=400),
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
        ),
        # pFedGate App. G, Table 4 (s = 1): lr .1, batch 128, 1 epoch, 400 rounds. The 62-class split "byclass".
        DatasetInfo(
            "emnist",
            62,
            (1, 28, 28),
            "image",
            False,
            _defaults("cnn-emnist", 0.1, batch=128, epochs=1, rounds=400),
            mean=(0.1736,),
            std=(0.3317,),
            class_names=CHARACTERS,
        ),
        # pFedGate App. G, Table 4 (s = 1), as for EMNIST; DM-PFL A.1.2 takes 500 clients, batch 64, 5 epochs.
        DatasetInfo(
            "femnist",
            62,
            (1, 28, 28),
            "image",
            True,
            _defaults("cnn-emnist", 0.1, batch=128, epochs=1, rounds=400),
            mean=(0.9637,),
            std=(0.1592,),
            class_names=CHARACTERS,
        ),
        # DM-PFL A.1.2, A.1.4: batch 10, 3 epochs, 300 rounds, lr in {.1, .05, .01} (the middle is our choice). Mean and
        # standard deviation of each channel over the official training part, in g and rad/s.
        DatasetInfo(
            "har",
            6,
            (9, 128),
            "signal",
            True,
            _defaults("har-cnn", 0.05, batch=10, epochs=3, rounds=300),
            mean=(-0.00064, -0.00029, -0.00028, 0.00051, -0.00082, 0.00011, 0.80475, 0.02876, 0.0865),
            std=(0.19485, 0.12243, 0.10688, 0.40682, 0.38185, 0.25574, 0.41411, 0.391, 0.35777),
            class_names=("walking", "upstairs", "downstairs", "sitting", "standing", "lying"),
        ),
        # FedPSE C.3: batch 64-512, lr 1e-3 to 1e-2 (the ends are our choice); Adam, 1 epoch, 100 rounds: Appendix E.
        DatasetInfo(
            "imdb",
            2,
            (IMDB_LENGTH,),
            "text",
            False,
            _defaults("embedding-linear", 0.01, batch=64, epochs=1, rounds=100, optimizer="adam"),
            vocabulary=IMDB_VOCABULARY,
            class_names=("negative", "positive"),
        ),
        # Training as for IMDB; no paper of ours uses it.
        DatasetInfo(
            "ag-news",
            4,
            (AG_NEWS_LENGTH,),
            "text",
            False,
            _defaults("embedding-linear", 0.01, batch=64, epochs=1, rounds=100, optimizer="adam"),
            vocabulary=AG_NEWS_VOCABULARY,
            class_names=("World", "Sports", "Business", "Sci/Tech"),
        ),
        # FedProx (Li et al., MLSys 2020), appendix C.2: lr .8, batch 10 (not checked again; LEAF's code has lr .0003).
        # One epoch and 100 rounds are our choice. Classes are the 80 letters.
        DatasetInfo(
            "shakespeare",
            len(LETTERS),
            (WINDOW,),
            "text",
            True,
            _defaults("shakespeare-lstm", 0.8, batch=10, epochs=1, rounds=100),
            vocabulary=SPECIALS + len(LETTERS),
            overlap=WINDOW - 1,
        ),
        # Ours. Mean and standard deviation are those that public code has for Tiny-ImageNet; not measured here.
        DatasetInfo(
            "tiny-imagenet",
            200,
            (3, 64, 64),
            "image",
            False,
            _defaults("resnet18-gn", 0.05, batch=64, epochs=1, rounds=200),
            mean=(0.4802, 0.4481, 0.3975),
            std=(0.2770, 0.2691, 0.2821),
        ),
    )
}


def default_model(kind: InputKind, shape: tuple[int, ...]) -> str:
    """Return the smallest built-in model for a user's inputs of this shape."""
    if kind == "text":
        return "embedding-linear"
    if kind == "image":
        return "cnn2-small" if min(shape[1:]) >= 12 else "digits-cnn"
    return "har-cnn" if len(shape) == 2 and shape[1] >= 36 else "har-mlp"
