"""Reads what a run has written."""

import json


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
