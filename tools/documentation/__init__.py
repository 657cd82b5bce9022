"""The documentation site: MkDocs builds it from ``docs/`` (``make docs``), with the pages that :mod:`.hook` adds."""
