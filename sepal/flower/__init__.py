"""Everything that Sepal uses of Flower beyond its documented modules (docs/decisions/0019-private-flower.md).

One module for each concern; nothing here imports another package of Sepal than ``sepal.errors``. Each says what would
replace it: the public API that Flower lacks. ``tests/test_imports.py`` keeps private names out of all other files.

==============  =======================================================  =============================================
module          what for                                                 which public API would replace it
==============  =======================================================  =============================================
``versions``    supported releases, and checks of what is patched        --
``messages``    messages outside of a run, error codes                   a Message without TaskIdentity; public codes
``replies``     many replies in one call, limits on a reply              Grid.pull_messages that streams and has a limit
``supernode``   pauses, late and lost replies, refusal of code           options and hooks of flower-supernode
``executor``    the resident client process                              a warm executor for ClientApps
``fleet``       ``deploy check``: is the key registered, the clock good  a status call of the Fleet API
``nodes``       registered nodes with their keys                         ``flwr supernode list`` with keys
``superlink``   no web pages; from 1.40 the Fleet API alone outside      host names to serve; an address for each API
``pauses``      time in which a SuperLink was paused counts for nobody   expiry by a clock that nobody sets
``admission``   1.39: strangers' messages are not read, all are limited  a limit, and the key's check before it
``connection``  clients of the load test                                 a client connection as a library
==============  =======================================================  =============================================
"""
