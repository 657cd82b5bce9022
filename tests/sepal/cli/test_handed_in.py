"""What a user may hand in, sentence by sentence of docs/own-data.md, from the files to predictions."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

import sepal as library
from sepal.cli.main import app
from sepal.study.runs import model_of
from tests.sepal.cli.test_inspect import patients


def sepal(*arguments):
    """Run a command in the working directory; return what it printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))


def predicted(result):
    return pd.read_csv(io.StringIO(result.stdout))


def test_a_mixed_table_by_site_in_three_commands(tmp_path):
    table = patients(tmp_path) / "patients.csv"
    keys = ("data-dir=patients.csv", "folder.label=diagnosis", "folder.person=site")
    sepal("run", "--dataset", "folder", *(f"--set={key}" for key in keys), "--name=first", "--rounds=12", "--workers=1")
    sepal("export", "first", "berlin", "--out=berlin.safetensors")
    result = sepal("predict", "berlin.safetensors", table)
    frame = pd.read_csv(table)
    assert (predicted(result)["name"] == frame["diagnosis"]).mean() > 0.75
    assert "accuracy" in result.stderr, "labels are in the column that the run was told of"
    unlabelled = frame.drop(columns=["diagnosis", "site"])[["sex", "visit", "smoker", "bmi", "age"]]
    unlabelled.to_csv("new.csv", index=False)
    assert sepal("predict", "berlin.safetensors", "new.csv").stdout == result.stdout, "columns go by their names"
    run = library.load("first")
    assert run.predict("berlin", unlabelled)["label"].tolist() == predicted(result)["label"].tolist()
    typed = unlabelled.assign(visit=pd.to_datetime(unlabelled["visit"]), smoker=pd.Categorical(unlabelled["smoker"]))
    assert run.predict("berlin", typed)["label"].tolist() == predicted(result)["label"].tolist()


def test_the_exported_model_refuses_a_category_that_it_does_not_know_and_onnx_takes_what_is_prepared(tmp_path):
    import onnxruntime

    table = patients(tmp_path) / "patients.csv"
    keys = ("data-dir=patients.csv", "folder.label=diagnosis", "folder.person=site")
    sepal("run", "--dataset=folder", *(f"--set={key}" for key in keys), "--name=first", "--rounds=1", "--workers=1")
    sepal("export", "first", "rome", "--out=m.safetensors", "--onnx")
    Path("odd.csv").write_text(table.read_text().replace("yes", "perhaps"))
    odd = CliRunner().invoke(app, ["predict", "m.safetensors", "odd.csv"])
    assert odd.exit_code != 0
    assert "column smoker: expected one of no, yes, got 'perhaps'" in str(odd.exception or "") + odd.output
    client_model = model_of(tmp_path / "runs" / "first", "rome")
    (logits,) = onnxruntime.InferenceSession("m.onnx").run(None, {"x": client_model.inputs})
    np.testing.assert_allclose(logits, client_model.logits, atol=1e-4)
    assert set(np.unique(client_model.inputs[:, 2])) <= {0.0, 1.0}, "categories as they are"


def test_a_schema_of_one_machine_is_what_another_ones_table_is_read_by(tmp_path):
    patients(tmp_path / "a")
    patients(tmp_path / "b", ("oslo", "wien"), seed=1)
    sepal("data", "inspect", "a", "--label=diagnosis", "--person=site", "--write")
    Path("b/schema.toml").write_bytes(Path("a/schema.toml").read_bytes())
    sepal("run", "--dataset=folder", "--set=data-dir=b", "--name=other", "--rounds=2", "--workers=1")
    assert set(library.load("other").frame["client"]) == {"oslo", "wien"}


def test_photographs_by_owner_in_three_commands(tmp_path):
    rng = np.random.default_rng(0)
    for site in ("berlin", "paris", "rome"):
        for level, name in enumerate(("dark", "light")):
            home = tmp_path / "photos" / site / name
            home.mkdir(parents=True)
            for n in range(12):
                pixels = rng.integers(0, 100, (24, 30, 3), dtype=np.uint8) + 120 * level
                wide = Image.fromarray(pixels.astype(np.uint8))
                (wide if n % 2 else wide.transpose(Image.Transpose.ROTATE_90)).save(home / f"{n}.jpg")
    result = sepal(
        "run",
        "--dataset=folder",
        "--set=data-dir=photos",
        "--name=p",
        "--rounds=8",
        "--workers=1",
    )
    assert "client/class: 3 owners, 2 classes" in result.stderr
    assert "folder.resize = 64: images have several sizes, " in result.stderr
    sepal("export", "p", "paris", "--out=paris.safetensors")
    result = sepal("predict", "paris.safetensors", "photos")
    assert "accuracy" in result.stderr
    frame = predicted(result)
    assert len(frame) == 72
    assert (frame["name"] == frame["example"].str.split("/").str[1]).mean() > 0.9


def blocks():
    """The commands of the first section of docs/own-data.md, a list for each block."""
    text = (Path(library.__file__).parents[1] / "docs" / "own-data.md").read_text(encoding="utf-8")
    section = text.split("## From a file to predictions")[1].split("\n## ")[0]
    return [block.split("```")[0].splitlines() for block in section.split("```bash\n")[1:]]


@pytest.mark.parametrize("commands", blocks(), ids=lambda commands: commands[1].split()[2])
def test_the_first_commands_of_the_page_go_from_a_file_to_predictions(commands, tmp_path):
    patients(tmp_path)
    pressures(tmp_path / "pressure.csv")
    for number, (owner, name) in enumerate((owner, name) for owner in ("anna", "ben") for name in ("cat", "dog")):
        home = tmp_path / "photos" / owner / name
        home.mkdir(parents=True)
        for n in range(12):
            Image.new("RGB", (70 + n, 66), (60 * number, n, 9)).save(home / f"{n}.jpg")
    for name in ("patients.csv", "pressure.csv", "photos"):
        (tmp_path / f"new-{name}").symlink_to(tmp_path / name)
    assert len(commands) <= 3
    for command in commands:
        words = shlex.split(command)
        result = sepal(*words[1:], *(("--rounds=2", "--workers=1") if words[1] == "run" else ()))
    assert len(predicted(result)) > 40
    assert any(word in result.stderr for word in ("accuracy", "rmse")), "the files have the truth, too"


def pressures(path):
    rng = np.random.default_rng(0)
    age, bmi, sex = rng.integers(20, 90, 120), rng.normal(26, 4, 120).round(1), rng.choice(["f", "m"], 120)
    pressure = 110 + 0.5 * age + 1.2 * (bmi - 26) + 6 * (sex == "m") + rng.normal(0, 6, 120)
    hospital = rng.choice(["north", "south", "east"], 120)
    table = {"hospital": hospital, "age": age, "bmi": bmi, "sex": sex, "mmHg": pressure.round(1)}
    pd.DataFrame(table).to_csv(path, index=False)


@pytest.mark.parametrize(
    "name",
    ["dates", pytest.param("diabetes", marks=pytest.mark.long), pytest.param("linnerud", marks=pytest.mark.long)],
)
def test_a_regression_target_in_three_commands_is_better_than_the_mean(tmp_path, name):
    table, targets = regression(name)
    table.to_csv("all.csv", index=False)
    keys = ("data-dir=all.csv", f"folder.label={','.join(targets)}", "task=regression", "clients=3")
    sepal(
        "run",
        "--dataset=folder",
        "--method=fedavg-ft",
        *(f"--set={key}" for key in keys),
        "--name=r",
        "--rounds=20",
        "--workers=1",
    )
    run = library.load("r")
    (view,) = {run.stored.deployed}
    rmse = run.stored.summary["headline"][view]["mean"]
    sepal("export", "r", "1", "--out=m.safetensors")
    predictions = predicted(sepal("predict", "m.safetensors", "all.csv"))
    columns = ["prediction"] if len(targets) == 1 else list(targets)
    error = np.sqrt(((predictions[columns].to_numpy() - table[list(targets)].to_numpy()) ** 2).mean())
    spread = np.sqrt(((table[list(targets)] - table[list(targets)].mean()) ** 2).to_numpy().mean())
    assert np.isfinite(error)
    if name != "linnerud":  # 20 rows
        assert rmse < spread
        assert error < spread, "predictions are in the unit of the targets"


def rows(count=48):
    """A little table: inputs (n, 3), class numbers (n,) and owners (n,)."""
    rng = np.random.default_rng(0)
    y = np.arange(count) % 2
    return (rng.normal(size=(count, 3)) + y[:, None]).astype(np.float32), y, np.repeat(["a", "b"], count // 2)


def pictures(directory, classes=("cat", "dog"), count=12, suffix=".png"):
    for two, name in enumerate(classes):
        (directory / name).mkdir(parents=True)
        for n in range(count):
            pixels = np.full((12, 12), 90 * two + n, np.uint8)
            if suffix == ".npy":
                np.save(directory / name / f"{n}.npy", pixels.astype(np.float32)[None] / 255)
            else:
                Image.fromarray(pixels).save(directory / name / f"{n}{suffix}")


def npz(**arrays):
    Path("data").mkdir()
    np.savez("data/all.npz", **arrays)
    return {"dataset": "folder", "data-dir": "data"}


def npz_plain():
    x, y, _ = rows()
    return npz(x=x, y=y)


def npz_with_test_part():
    x, y, _ = rows()
    return npz(x=x[:30], y=y[:30], x_test=x[30:], y_test=y[30:])


def npz_with_owners_and_other_names():
    x, y, owners = rows()
    return npz(x=x, kind=y, site=owners) | {"folder.label": "kind", "folder.person": "site"}


def npz_images():
    return npz(x=np.arange(48 * 144, dtype=np.uint32).reshape(48, 12, 12).astype(np.uint8), y=rows()[1])


def npz_tokens():
    return npz(x=np.arange(48 * 6).reshape(48, 6) % 30, y=rows()[1])


def csv(**keys):
    x, y, owners = rows()
    Path("data").mkdir()
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(label=y, person=owners)
    frame.loc[3, "a"] = np.nan if "folder.missing" in keys else 0
    frame.to_csv("data/all.csv", index="folder.missing" in keys)
    return {"dataset": "folder", "data-dir": "data", **keys}


def csv_with_missing_cells():
    return csv(**{"folder.missing": "mean"})


def csv_as_it_is():
    return csv(**{"folder.standardize": False})


def csv_with_named_classes():
    return csv(**{"folder.classes": "well,ill,unsure"})


def csv_by_a_schema():
    keys = csv()
    CliRunner().invoke(app, ["data", "inspect", "data", "--out", "kept.toml"])
    return keys | {"folder.schema": "kept.toml"}


def directories_of_classes():
    pictures(Path("data"), suffix=".JPG")
    return {"dataset": "folder", "data-dir": "data"}


def directories_of_arrays():
    pictures(Path("data"), suffix=".npy")
    return {"dataset": "folder", "data-dir": "data"}


def parts_of_classes():
    for part in ("train", "val", "test"):
        pictures(Path("data") / part)
    return {"dataset": "folder", "data-dir": "data"}


def saved_copy():
    datasets = pytest.importorskip("datasets")
    x, y, owners = rows()
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(kind=y, site=owners)
    datasets.DatasetDict({"train": datasets.Dataset.from_pandas(frame)}).save_to_disk("data")
    return {"dataset": "hf", "data-dir": "data", "hf.label": "kind", "hf.person": "site", "hf.test": ""}


def parquet_copy():
    x, y, _ = rows()
    Path("data").mkdir()
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(label=y)
    for part, end in (("train", 48), ("validation", 12), ("test", 12)):
        frame[:end].to_parquet(f"data/{part}.parquet")
    return {"dataset": "hf", "data-dir": "data"}


FUNCTIONS = """
import numpy as np, torch
from sepal.data import ClientData, Examples

rng = np.random.default_rng(0)
y = np.arange(24) % 2
x = (rng.normal(size=(24, 3)) + y[:, None]).astype(np.float32)
pairs = [(torch.from_numpy(row), int(label)) for row, label in zip(x, y)]

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, n): return pairs[n]

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(pairs)

class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(5, 2)
    def forward(self, one, two): return self.last(torch.cat([one, two.float()], 1))

def build(shape, classes): return Named()
def arrays(): return x, y, x, y
def by_number(client): return x + client, y, x, y
def client_data(): return ClientData(Examples(x, y), Examples(x, y), Examples(x, y))
def datasets(): return Rows(), Rows()
def three_datasets(): return Rows(), Rows(), Rows()
def iterables(): return Stream(), Stream()
def named(): return tuple(v for _ in range(2) for v in ({"one": x, "two": y[:, None].repeat(2, 1)}, y))
def in_places(): return tuple(v for _ in range(2) for v in ((x, y[:, None].repeat(2, 1)), y))
"""


def function(name):
    def write():
        module = f"handed_in_{name}"
        Path(f"{module}.py").write_text(FUNCTIONS)
        shape = {"named": "one=3,two=2i", "in_places": "3,2i"}.get(name, "3")
        own_keys = {"own.data": f"{module}:{name}", "own.shape": shape, "own.classes": 2}
        return {"dataset": "own", **own_keys, **({"model": f"{module}:build"} if "," in shape else {})}

    write.__name__ = f"function_{name}"
    return write


HANDED_IN = [
    *(npz_plain, npz_with_test_part, npz_with_owners_and_other_names, npz_images, npz_tokens),
    *(csv, csv_with_missing_cells, csv_as_it_is, csv_with_named_classes, csv_by_a_schema),
    *(directories_of_classes, directories_of_arrays, parts_of_classes, saved_copy, parquet_copy),
    *map(function, ("arrays", "by_number", "client_data", "datasets", "three_datasets", "iterables")),
    *map(function, ("named", "in_places")),
]


@pytest.mark.parametrize("write", HANDED_IN, ids=lambda write: write.__name__)
def test_what_the_page_says_may_be_handed_in_is_trained_on_exported_and_predicted(write, monkeypatch):
    monkeypatch.syspath_prepend(".")
    flat = {**write(), "method": "fedavg-ft", "rounds": 1, "name": "r", "evaluate-every": 1}
    flat |= {} if "folder.person" in flat or "hf.person" in flat or write.__name__.startswith("csv") else {"clients": 2}
    flat |= {} if flat["dataset"] == "own" or "clients" not in flat else {"partition.name": "iid"}
    sets = [f"--set={key}={str(value).lower() if value is False else value}" for key, value in flat.items()]
    sepal("run", *sets, "--workers=1")
    run = library.load("r")
    assert run.stored.summary["complete"]
    assert 0 <= run.stored.summary["accuracy"]["received"]["mean"] <= 1
    code = [f"--allow={flat[key]}" for key in ("model", "own.data") if key in flat]
    sepal("export", "r", "0", "--out=m.safetensors", *code)
    if flat["dataset"] == "folder":
        assert len(predicted(sepal("predict", "m.safetensors", "data", *code))) in (24, 30, 48, 72)
    else:
        np.save("rows.npy", np.zeros((2, 5 if "model" in flat else 3), np.float32))
        assert len(predicted(sepal("predict", "m.safetensors", "rows.npy", *code))) == 2


def regression(name):
    """A table and the names of its targets."""
    from sklearn import datasets

    if name in ("diabetes", "linnerud"):
        bunch = getattr(datasets, f"load_{name}")(as_frame=True)
        targets = ["target"] if name == "diabetes" else list(bunch.target.columns)
        return bunch.frame, targets
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3))
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=240) / 5
    table = pd.DataFrame(x * [1e-3, 1.0, 1e6] + [5.0, 0.0, 1e7], columns=["a", "b", "c"])
    table["b"] = (pd.Timestamp("2026-01-01") + pd.to_timedelta(np.round(x[:, 1] * 3600), "s")).strftime("%F %T")
    return table.assign(y=10 * y + 120), ["y"]
