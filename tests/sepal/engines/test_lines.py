"""What `sepal serve` and `sepal join` show of Flower's output, and what goes to the log file alone."""

from __future__ import annotations

import pytest

from sepal.engines.flower.lines import SELDOM, Lines
from sepal.operation.figures import CLOSING

NODE = [
    "\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode",
    "INFO:     Uvicorn running on https://127.0.0.1:51601 (Press CTRL+C to quit)",
    "\x1b[92mINFO \x1b[0m:      SuperNode ID: 144",
    "\x1b[92mINFO \x1b[0m:      [RUN 76, ROUND 1]",
    "\x1b[92mINFO \x1b[0m:      Sending: query message (ID: a1)",
    "\x1b[92mINFO \x1b[0m:      [RUN 76, ROUND 2]",
    "\x1b[92mINFO \x1b[0m:      Sending: train message (ID: a2)",
    "sepal: a line of ours",
    "\x1b[92mINFO \x1b[0m:      [RUN 76, ROUND 3]",
    f"sepal: client-00000: refused by the server: {CLOSING}",  # a server's words do not hide themselves
    "\x1b[92mINFO \x1b[0m:      [RUN 76, ROUND 3]",
    f"sepal: client-00000: {CLOSING}",
    "\x1b[92mINFO \x1b[0m:      [RUN 76, ROUND 3]",
    "\x1b[92mINFO \x1b[0m:      Sending: train.adapt message (ID: a3)",
    "\x1b[93mWARNING \x1b[0m:   Connection attempt failed, retrying in 0.53 seconds",
    "\x1b[93mWARNING \x1b[0m:   Connection attempt failed, retrying in 7.00 seconds",
    '{"time": "now", "message": "as JSON"}',
]


def shown(tmp_path, **options):
    output = []
    lines = Lines(tmp_path / "node.log", output.append, **options)
    for line in NODE:
        lines(line)
    assert (tmp_path / "node.log").read_text().count("\n") == len(NODE)
    assert "\x1b" not in (tmp_path / "node.log").read_text()
    return output


def test_only_sepals_lines_are_shown(tmp_path):
    assert shown(tmp_path) == [
        "sepal: joined, and waits for the server's messages",
        "sepal: round 2: trained, and the reply is on its way",
        "sepal: a line of ours",
        f"sepal: client-00000: refused by the server: {CLOSING}",
        "sepal: closing evaluation: evaluated, and the figures are on their way",
        "sepal: the server does not answer: the run may have ended, then Ctrl-C ends this client; trying again",
    ]


@pytest.mark.parametrize("json", [False, True])
def test_all_are_shown_where_it_is_asked_for_and_where_logs_are_collected(tmp_path, monkeypatch, json):
    if json:
        monkeypatch.setenv("SEPAL_LOG", "json")
    assert shown(tmp_path, everything=not json) == NODE


def test_what_a_node_says_of_each_message_is_told_once_a_run_and_counted_at_its_end(tmp_path):
    """Each message is answered by a process of its own, which does not know what was said before."""

    def messages(run):
        for round in (1, 2, 3):
            yield f"INFO :      [RUN {run}, ROUND {round}]"
            yield f"sepal: the model warns of step {round}"
        yield f"sepal: client-00000: {CLOSING}"

    output = []
    lines = Lines(tmp_path / "node.log", output.append)
    for line in [*messages(76), *messages(77), "sepal: another"]:
        lines(line)
    once = ["sepal: the model warns of step 1", "sepal: 3 times: the model warns of step 1"]
    assert output == [*once, *once, "sepal: another"]


def test_a_new_run_is_told_again_what_a_run_without_an_end_was_told(tmp_path):
    output = []
    lines = Lines(tmp_path / "node.log", output.append)
    for run in (1, 1, 2, 2):
        lines(f"INFO :      [RUN {run}, ROUND 0]")
        lines("sepal: client-00000: refused by the server: another model")
    refused = "client-00000: refused by the server: another model"
    assert output == [f"sepal: {refused}", f"sepal: 2 times: {refused}", f"sepal: {refused}"]


def test_a_server_that_does_not_answer_is_told_of_seldom(tmp_path, monkeypatch):
    output, now = [], 0.0
    monkeypatch.setattr("sepal.engines.flower.lines.time.monotonic", lambda: now)
    lines = Lines(tmp_path / "node.log", output.append)
    for now in (0.0, 1.0, SELDOM - 1, SELDOM, SELDOM + 1):  # noqa: B007 the clock reads it
        lines("WARNING :   Connection attempt failed, retrying in 7.00 seconds")
    assert len(output) == 2


SENT = "INFO :      Sending: train message (ID: a2)"
FULL = (
    "sepal: site: no answer to train (no-room), code 1234567{}: StateError: /s/3-ab: expected room, got none: 0 bytes"
)


def test_a_reply_that_is_an_error_is_not_told_as_trained(tmp_path):
    """The line was shown for it, too: an operator took a client with a full disk for one that trains."""
    output = []
    lines = Lines(tmp_path / "node.log", output.append)
    lines("INFO :      [RUN 76, ROUND 2]")
    for number in (1, 2, 3):
        lines(FULL.format(number))
        lines(SENT)
    for line in ("sepal: site: no answer to query (data), code 12345678: DataError: x", SENT, SENT):
        lines(line)
    trained = "sepal: round 2: trained, and the reply is on its way"
    refused_query = "sepal: site: no answer to query (data), code 12345678: DataError: x"
    again = "sepal: its files can be written again"
    assert output == [FULL.format(1), refused_query, again, trained, trained]


def test_a_log_without_room_leaves_its_lines_out(tmp_path, capsys):
    output = []
    lines = Lines(tmp_path / "node.log", output.append)
    (tmp_path / "node.log").symlink_to("/dev/full")
    lines("sepal: a line")
    assert output == ["sepal: a line"]
    assert capsys.readouterr().err == ""
