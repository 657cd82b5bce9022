"""Data with a cache beside it that a stranger has filled: nothing in it runs, waits, or leads elsewhere."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from sepal.config import FolderSettings, PartitionSettings
from sepal.data import DataSpec, cache, client_data, federation, sources
from sepal.data.cache import Entry
from sepal.data.locations import SECRET
from sepal.errors import DataError
from sepal.storage.home import private_home
from sepal.strategies.assembly import assemble

CLIENTS, ROWS = 3, 60


@pytest.fixture
def forget(monkeypatch, tmp_path_factory):
    """A function that forgets what this process has read; there is no SEPAL_CACHE."""
    monkeypatch.delenv("SEPAL_CACHE", raising=False)
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path_factory.mktemp("home")))

    def clear():
        sources._remembered.cache_clear()
        federation._remembered.cache_clear()

    clear()
    yield clear
    clear()


@pytest.fixture
def data(tmp_path, forget):
    """A table with a cache beside it that Sepal has filled, in a process that has forgotten it."""
    home = tmp_path / "data"
    home.mkdir()
    lines = [f"{row},{row % 7},{row % 3}" for row in range(ROWS)]
    (home / "table.csv").write_text("\n".join(["a,b,label", *lines, ""]))
    read(home)
    forget()
    return home


def read(home):
    """Return what is known of the data, and the labels with which clients train."""
    spec = DataSpec("folder", str(home), PartitionSettings(name="iid"), clients=CLIENTS, folder=FolderSettings())
    labels = [client_data(spec, number).train.y.tolist() for number in range(CLIENTS)]
    return sources.load(spec.dataset, spec.data_dir, spec.folder).info, labels


def entry(home, array):
    (path,) = (home / ".sepal-cache").glob(f"*/{array}.npy")
    return path.parent


def seal_again(home):
    """Seal all entries as the user's own process would: what a reader checks beyond the seal has to hold, too."""
    secret = (private_home() / SECRET).read_bytes()
    for notes in (home / ".sepal-cache").glob("*/notes.json"):
        sealed = Entry(notes.parent, True, secret)
        files = [path for path in notes.parent.iterdir() if path.name != "seal"]
        (notes.parent / "seal").write_text(sealed.seal_of(files))


def replaced(path, array):
    path.unlink()
    np.save(path, array)


def changed(home, **facts):
    """Change what the cache says of the data."""
    path = entry(home, "x") / "notes.json"
    stored = json.loads(path.read_text())
    stored["notes"]["info"] |= facts
    path.write_text(json.dumps(stored))


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def linked(path, outside):
    """Put a link in the place of an entry, to one with other labels."""
    labels = np.load(path / "y.npy")
    replaced(path / "y.npy", (labels + 1) % 3)
    path.rename(outside)
    path.symlink_to(outside)


def file_linked(path, outside):
    replaced(path, (np.load(path) + 1) % 3)
    path.rename(outside)
    path.symlink_to(outside)


PLANTED = {
    "a pipe of notes": lambda home, outside: pipe(entry(home, "rows") / "notes.json"),
    "a pipe of rows": lambda home, outside: pipe(entry(home, "rows") / "rows.npy"),
    "a pipe of inputs": lambda home, outside: pipe(entry(home, "x") / "x.npy"),
    "labels elsewhere": lambda home, outside: file_linked(entry(home, "y") / "y.npy", outside),
    "an entry elsewhere": lambda home, outside: linked(entry(home, "x"), outside),
    "rows beyond the last": lambda home, outside: replaced(entry(home, "rows") / "rows.npy", np.arange(ROWS) + 1000),
    "rows below the first": lambda home, outside: replaced(entry(home, "rows") / "rows.npy", -np.arange(ROWS) - 1000),
    "rows that are no numbers of rows": lambda home, outside: replaced(entry(home, "rows") / "rows.npy", np.ones(ROWS)),
    "rows of two axes": lambda home, outside: replaced(entry(home, "rows") / "rows.npy", np.zeros((ROWS, 2), int)),
    "few inputs": lambda home, outside: replaced(entry(home, "x") / "x.npy", np.zeros((5, 2))),
    "texts as inputs": lambda home, outside: replaced(entry(home, "x") / "x.npy", np.full((ROWS, 2), "a")),
    "labels beyond the last class": lambda home, outside: replaced(entry(home, "y") / "y.npy", np.arange(ROWS) + 1000),
    "classes that are no number": lambda home, outside: changed(home, classes="x"),
    "a shape of nothing": lambda home, outside: changed(home, input_shape=[]),
    "owners that nobody names": lambda home, outside: changed(home, natural=True),
    "defaults that no run may have": lambda home, outside: changed(home, defaults={"batch-size": -1, "optimizer": "x"}),
    "deep notes": lambda home, outside: (entry(home, "x") / "notes.json").write_text("[" * 100_000),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_in_a_cache_beside_data_is_not_used(what, sealed, data, tmp_path, forget):
    expected = read(data)
    forget()
    PLANTED[what](data, tmp_path / "outside.npy")
    if sealed:
        seal_again(data)
    assert read(data) == expected


def copied(path):
    """Replace an entry by a copy with the times of the first one, as a directory that was away comes back."""
    path.rename(path.with_name("away"))
    shutil.copytree(path.with_name("away"), path)
    shutil.rmtree(path.with_name("away"))


def changed_in_place(path, array):
    """Turn an array round, and set its size and times as they were."""
    file = path / f"{array}.npy"
    before, values = file.stat(), np.load(file)
    with file.open("r+b") as opened:
        opened.seek(before.st_size - values.nbytes)
        opened.write(values[::-1].tobytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def notes_in_place(path):
    file = path / "notes.json"
    before = file.stat()
    file.write_text(file.read_text().replace('"label"', '"LABEL"', 1).replace('"a"', '"A"', 1))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


SINCE = {  # what somebody who had the directory for a while does to an entry; only the secret is not known to them
    "an array is turned round": changed_in_place,
    "a file comes back": lambda path, array: replaced(path / f"{array}.npy", np.load(path / f"{array}.npy")[::-1]),
    "the entry comes back": lambda path, array: copied(path),
    "the notes change": lambda path, array: notes_in_place(path),
    "the seal is gone": lambda path, array: (path / "seal").unlink(),
    "the seal is another one": lambda path, array: (path / "seal").write_text("0" * 64),
}


@pytest.mark.parametrize("array", ["rows", "y"])
@pytest.mark.parametrize("what", SINCE)
def test_an_entry_that_was_changed_since_it_was_made_is_made_again(what, array, data, forget):
    expected = read(data)
    forget()
    path = entry(data, array)
    SINCE[what](path, array)
    assert cache.read(Entry(path, True, (private_home() / SECRET).read_bytes())) is None
    assert read(data) == expected
    forget()
    assert cache.read(Entry(entry(data, array), True, (private_home() / SECRET).read_bytes())) is not None


def test_no_cache_beside_data_names_code(data, tmp_path, monkeypatch, forget):
    """A default model of the data was imported from the working directory, which may be that of the data."""
    forget()
    (data / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write('ran')\n")
    monkeypatch.chdir(data)
    monkeypatch.syspath_prepend(str(data))
    keys = {"dataset": "folder", "data-dir": str(data), "clients": CLIENTS}
    shutil.rmtree(data / ".sepal-cache")
    model = assemble(keys).setup.config.model
    defaults = json.loads((entry(data, "x") / "notes.json").read_text())["notes"]["info"]["defaults"]
    changed(data, defaults={**defaults, "model": "evil:Net"})
    seal_again(data)
    forget()
    assert assemble(keys).setup.config.model == model
    assert not (tmp_path / "ran").exists()


def test_a_cache_beside_data_that_is_a_link_takes_nothing_elsewhere(data, tmp_path, forget, monkeypatch):
    (data / ".sepal-cache").rename(tmp_path / "moved")
    (tmp_path / "victim").mkdir()
    (data / ".sepal-cache").symlink_to(tmp_path / "victim")
    with pytest.raises(
        DataError, match=r"\.sepal-cache: expected a directory in .* SEPAL_CACHE, got a link that leads"
    ):
        read(data)
    assert not list((tmp_path / "victim").iterdir())
    monkeypatch.setenv("SEPAL_CACHE", str(data / ".sepal-cache"))  # the user's own choice
    forget()
    read(data)
    assert list((tmp_path / "victim").iterdir())


def test_a_lock_in_a_cache_beside_data_that_is_a_link_is_not_opened(data, tmp_path, forget, monkeypatch):
    """Versions of filelock before 3.20.1 empty the file to which it leads."""
    opened = []
    monkeypatch.setattr("filelock.FileLock.acquire", lambda self, *a, **k: opened.append(self.lock_file))
    victim, place = tmp_path / "victim", entry(data, "rows")
    victim.write_text("precious")
    for path in place.iterdir():
        path.unlink()
    lock = place.with_name(f".{place.name}.lock")
    lock.unlink(missing_ok=True)
    lock.symlink_to(victim)
    read(data)
    assert str(lock) not in opened
    assert victim.read_text() == "precious"


@pytest.fixture
def another(monkeypatch):
    """A function that gives a path to another user; where this is not allowed, this process becomes another user."""

    def give(path):
        user = os.geteuid()
        if user == 0:
            os.chown(path, 54321, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    return give


@pytest.mark.parametrize("whose", ["the cache", "rows", "y"])
def test_a_cache_of_another_user_chooses_nothing_of_own_data(whose, data, forget, another):
    """In a directory such as /tmp, anybody may make the cache of a file before it is first read."""
    expected = read(data)
    forget()
    labels, rows = entry(data, "y"), entry(data, "rows")
    replaced(labels / "y.npy", (np.load(labels / "y.npy") + 1) % 3)
    replaced(rows / "rows.npy", np.load(rows / "rows.npy")[::-1])
    for array in ("rows", "y"):
        if whose in ("the cache", array):
            another(data / ".sepal-cache" if whose == "the cache" else entry(data, array))
        elif os.geteuid() == 0:
            shutil.rmtree(entry(data, array))
    seal_again(data)
    before = sorted(path.name for path in (data / ".sepal-cache").iterdir())
    assert read(data) == expected
    if whose == "the cache":
        assert sorted(path.name for path in (data / ".sepal-cache").iterdir() if path.is_dir()) == [
            name for name in before if not name.startswith(".")
        ]


@pytest.mark.parametrize("array", ["rows", "y"])
def test_a_cache_that_came_with_data_chooses_nothing_however_well_it_fits(array, data, forget, monkeypatch, tmp_path):
    """Its maker reads the same files, of the same times, in a directory of the same name, and changes what was read."""
    expected = read(data)
    forget()
    path = entry(data, array) / f"{array}.npy"
    replaced(path, np.load(path)[::-1] if array == "rows" else (np.load(path) + 1) % 3)
    seal_again(data)
    assert read(data) != expected  # for its maker
    forget()
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "a reader's"))
    assert read(data) == expected
    monkeypatch.setattr(sources, "_read", None)  # and the reader's own is used
    forget()
    assert read(data) == expected


def test_without_a_home_of_ones_own_no_cache_beside_data_is_used(data, forget, monkeypatch, tmp_path):
    expected = read(data)
    forget()
    before = sorted((data / ".sepal-cache").iterdir())
    (tmp_path / "no directory").write_text("")
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "no directory"))
    assert read(data) == expected
    assert sorted((data / ".sepal-cache").iterdir()) == before


@pytest.mark.parametrize("owners", [False, True])
def test_the_cache_that_sepal_has_made_is_used(owners, data, forget, monkeypatch):
    if owners:
        table = data / "table.csv"
        head, *rows = table.read_text().split()
        table.write_text("\n".join([f"{head},person", *(f"{row},p{row[-1]}" for row in rows), ""]))
    expected = read(data)
    forget()
    monkeypatch.setattr(sources, "_read", None)
    monkeypatch.setattr(federation, "_compute_table", None)
    assert read(data) == expected
    assert expected[0].natural == owners
