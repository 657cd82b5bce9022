"""From a claim of README or of the paper to the command that shows it: docs/artifact.md, and the paper's figures."""
