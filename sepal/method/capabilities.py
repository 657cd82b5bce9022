"""What a method can do beyond its plain rounds: claims of its algorithms' classes, which subclasses inherit.

A class claims a capability by a class attribute, such as ``batched = True``. A subclass has it too, as long as it
leaves alone what the claim rests on. If it overrides anything of the class that made the claim, or of that class's
bases, other than the names in :attr:`Capability.free`, the claim is void until the subclass makes it again: a claim
that holds by accident would show in no figure, above all that of noised uploads. A name that the subclass adds
overrides nothing.

    class FedProxClient(FedAvgClient):      # has FedAvgClient's capabilities
        def hooks(self, received, plan): ...

    class MineClient(FedAvgClient):         # not noised, not compressed, trains alone ...
        batched = True                      # ... but for this, which it claims itself
        def train(self, state, download, plan): ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Steps of a client and of a server that affect only what is learned, not what is sent or how it is received.
LEARNING = frozenset({"hooks", "predictor"})
LOCAL = LEARNING | {"init", "personal_weights", "shared", "download_schema"}
STATE = frozenset({"init", "shared", "plan", "update", "weigh", "model", "reference", "joined", "evicted"})


@dataclass(frozen=True)
class Capability:
    """A claim that the class of an algorithm can make.

    Attributes:
        attribute: Name of the class attribute.
        without: Its value if no class claims it, or a subclass has made the claim void.
        free: Names that a subclass may override and keep the claim.
    """

    attribute: str
    without: Any = False
    free: frozenset[str] = field(default_factory=frozenset)

    def of(self, algorithm: Any) -> Any:
        """Return the value that a class claims, or a factory by an attribute of its own."""
        claim = getattr(algorithm, self.attribute, self.without)
        return self.without if self.overridden(algorithm) else claim

    def overridden(self, algorithm: Any) -> tuple[str, ...]:
        """Return the names that make a class's claim void, sorted: those overridden below the class that makes it.

        It is empty if no class makes a claim, or if ``algorithm`` is a factory and not a class.
        """
        if not isinstance(algorithm, type) or getattr(algorithm, self.attribute, self.without) == self.without:
            return ()
        lineage = algorithm.__mro__
        claimant = next(number for number, kind in enumerate(lineage) if self.attribute in vars(kind))
        above = {name for kind in lineage[claimant:] for name in vars(kind)}
        below = {name for kind in lineage[:claimant] for name in vars(kind) if not name.startswith("__")}
        return tuple(sorted(below & above - self.free - _ATTRIBUTES))


# Of clients.
PRIVATE = Capability("private_phases", (), LEARNING)
BATCHED = Capability("batched", False, LOCAL)
COMBINATION = Capability(
    "combination", "", LOCAL - {"predictor"} | {"adapt", "received_weights", "fit", "train", "upload"}
)
# Of clients and of servers: a method has it if both do.
DENSE_CLIENT = Capability("dense_exchange", False, LOCAL - {"download_schema"} | {"adapt", "fit"})
DENSE_SERVER = Capability("dense_exchange", False, STATE | {"aggregate"})
# Of servers.
ROBUST = Capability("robust_means", False, STATE | {"download", "newcomer", "upload_schema"})
SUMMED = Capability("summed_phases", (), STATE - {"weigh"})
CAPACITY = Capability("uses_capacity", False, STATE - {"shared"})

# Limits. Every subclass has them, whatever it overrides: one that forgot them would be wrong in silence.
DEPENDS_ON_ROUNDS = "depends_on_rounds"  # of servers
NEEDS_OF_TASK, FIXED_KEYS = "needs_of_task", "fixed_keys"  # of clients
READS_UPLOADS = (
    "reads_uploads"  # of servers: what they read of single uploads, in words; why they have no claim ``summed_phases``
)

_ATTRIBUTES = {
    capability.attribute for capability in (PRIVATE, BATCHED, COMBINATION, DENSE_CLIENT, ROBUST, SUMMED, CAPACITY)
}
_ATTRIBUTES |= {DEPENDS_ON_ROUNDS, NEEDS_OF_TASK, FIXED_KEYS}
