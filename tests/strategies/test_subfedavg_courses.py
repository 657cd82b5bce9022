"""The course of pruning: only rounds in which a client pruned and was evaluated, or took part, count."""

from sepal.strategies.subfedavg.pruning_reader import courses, distances


def client(name, trained, **metrics):
    return {"name": name, "trained": trained, "metrics": metrics}


def test_a_course_has_the_rounds_in_which_a_client_was_evaluated():
    lines = [
        {"round": 1, "clients": [client("b", None, pruned=0.1), client("a", 0.5, pruned=0.05)]},
        {"round": 2, "clients": [client("b", 0.75, pruned=0.2), client("c", 0.9)]},
        {"round": 3, "clients": [client("b", 0.8, pruned=0.31)]},
    ]
    course_rows = courses(lines)
    assert list(course_rows) == ["a", "b"]
    assert course_rows["b"] == {"round": [2, 3], "pruned": [0.2, 0.31], "accuracy": [0.75, 0.8]}


def test_distances_are_of_rounds_in_which_a_client_took_part():
    gates = {"distance": 0.00006, "channel-distance": 0.0625}  # below ε = 1e-4, which four decimals would not show
    lines = [
        {"round": 1, "clients": [client("b", None, pruned=0.1, **gates), client("a", 0.5, pruned=0.05)]},
        {"round": 2, "clients": [client("b", 0.75, pruned=0.2), client("c", 0.9, distance=0.5)]},
    ]
    assert distances(lines) == {
        "b": {"round": [1], "distance": [0.00006], "channel-distance": [0.0625]},
        "c": {"round": [2], "distance": [0.5]},
    }
