"""``python -m referee.paper``: a paper by its name, one table of it, and what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from referee.paper.__main__ import main


def test_a_paper_is_found_by_its_name_and_one_table_of_it_is_taken(tmp_path: Path, monkeypatch, capsys) -> None:
    """The sweep of p has twelve runs, of which none is begun."""
    monkeypatch.chdir(tmp_path)
    main(["fedpse", "--table", "figure 4", "--hours", "0"])
    tables = (tmp_path / "runs" / "fedpse" / "tables.md").read_text()
    assert "Not there: 12 of 12 runs: sweep-keep_0.9-fedpse-seed0" in tables
    assert tables in capsys.readouterr().out
    main(["fedpse", "--scale", "quick", "--hours", "0"])
    assert "Not there: 24 of 24 runs" in (tmp_path / "runs" / "fedpse-quick" / "tables.md").read_text()


@pytest.mark.parametrize("arguments", [["fedpsse"], []])
def test_a_paper_that_is_not_there_is_one_line(arguments, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    error = capsys.readouterr().err
    assert "paper: plan: expected a path, or one of dmpfl, fedpse, pa3dfl" in error
    assert error.count("\n") == 1
