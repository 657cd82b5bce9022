"""Plans: TOML files that list runs, and the code that runs them for `sepal compare`, `tune` and `paper`."""
