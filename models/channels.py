"""Finds how a model's tensors are coupled by channels, from its data flow.

``torch.fx`` traces the forward pass, so the order in which layers are called counts, not the order of their names.
It supports sequences of convolutions, batch and group norms, linear layers, and operations on single channels
(activations, pooling, dropout). Anything else raises an error: sums of two branches, embeddings, grouped convolutions.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import fx, nn

from sepal.errors import ModelError
from sepal.masks.cuts import Axis, ChannelGroup, Coupling
from sepal.modules import OTHERWISE, refuse_frozen_and_tied

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)

_POOLINGS = {f"{kind}pool{axes}d" for kind in ("max", "avg", "adaptivemax", "adaptiveavg") for axes in (1, 2, 3)}
_EACH_ENTRY = {  # torch's functions, methods and layers, without case and underscores
    *("celu", "elu", "gelu", "hardswish", "hardtanh", "leakyrelu", "mish", "relu", "relu6", "selu", "sigmoid", "silu"),
    *("softplus", "tanh", "alphadropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "identity"),
}


def coupling(module: nn.Module) -> Coupling:
    """Return the channel groups of ``module``, in the order of its layers.

    The inputs of the first layer and the outputs of the last, the classes, are in no group: they are never cut.

    Raises:
        ModelError: The model is not a sequence of layers that this function knows.
    """
    walk = _LayerWalk(module)
    for node in walk.nodes:
        walk.step(node)
    return tuple(walk.groups[:-1])


class _LayerWalk:
    """Follows the value that is passed from layer to layer.

    Attributes:
        groups: A group for each layer with weights so far; the last one has the channels of the value.
        shape: The axis of the channels: "input" (unknown), "maps" (axis 1), "flat" (axis 1, maps flattened, one block
            per channel) or "features" (the last axis).
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.model = module, type(module).__name__
        refuse_frozen_and_tied(module, "where channels are to be cut")
        try:
            nodes = list(fx.Tracer().trace(module).nodes)
        except Exception as error:  # whatever a forward pass does when it is handed a proxy
            raise self.unknown(f"a forward pass that cannot be traced ({error})") from error
        self.last, *self.nodes = nodes[:-1]  # the input first; the output is not an operation
        self.tensor_ids: set[int] = set()  # tensors, by identity
        self.groups: list[ChannelGroup] = []
        self.shape = "input"
        if nodes[-1].args[0] is not nodes[-2]:
            raise self.unknown("another output than the last layer's")

    def unknown(self, feature: str) -> ModelError:
        """Return the error of a model whose channels cannot be cut."""
        expected = "convolutions, norms and linear layers one after another, where channels are to be cut"
        return ModelError("model", f"{expected} ({OTHERWISE})", f"{self.model} with {feature}")

    def step(self, node: fx.Node) -> None:
        """Process one operation."""
        if node.all_input_nodes != [self.last]:
            raise self.unknown(f"{node.name}, which does not take the value before it and nothing else")
        self.last = node
        if node.op == "call_module":
            path = str(node.target)
            self.layer(path, self.module.get_submodule(path))
            return
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        if name == "flatten":
            ends = {**dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)), **node.kwargs}
            self.flatten(ends.get("start_dim", 0), ends.get("end_dim", -1))
        else:
            self.by_channel(name, name)

    def layer(self, path: str, layer: nn.Module) -> None:
        """Process a layer."""
        parameters = dict(layer.named_parameters())
        if self.tensor_ids & {id(tensor) for tensor in parameters.values()}:
            raise self.unknown(f"{path}, whose weights another layer has, too")
        if not parameters.keys() <= {"weight", "bias"}:
            raise self.unknown(f"{path} ({type(layer).__name__}), which has more than weight and bias")
        self.tensor_ids |= {id(tensor) for tensor in parameters.values()}
        if isinstance(layer, CONVOLUTIONS):
            self.convolution(path, layer)
        elif isinstance(layer, nn.Linear):
            self.linear(path, layer)
        elif isinstance(layer, NORMS):
            self.norm(path, layer)
        elif isinstance(layer, nn.Flatten):
            self.flatten(layer.start_dim, layer.end_dim)
        else:
            self.by_channel(type(layer).__name__, f"{path} ({type(layer).__name__})")

    def by_channel(self, name: str, shown: str) -> None:
        """Process an operation on single channels without weights, which couples nothing."""
        plain = name.lower().replace("_", "")
        if plain not in _EACH_ENTRY and (plain not in _POOLINGS or self.shape not in ("input", "maps")):
            raise self.unknown(shown)

    def convolution(self, path: str, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        """Inputs along axis 1 of the weight, outputs along axis 0."""
        if layer.groups != 1 or self.shape not in ("input", "maps"):
            raise self.unknown(f"{path}, a convolution in groups or behind a flattening")
        self.shape = "maps"
        self.extend(Axis(f"{path}.weight", 1))
        self.open(path, layer, layer.out_channels)

    def linear(self, path: str, layer: nn.Linear) -> None:
        """Like a convolution; after flattening, each channel has a block of inputs, one for each pixel of its map."""
        if self.shape == "maps":
            raise self.unknown(f"{path}, a linear layer on maps that are not flattened")
        block = layer.in_features // self.groups[-1].size if self.shape == "flat" and self.groups else 1
        self.shape = "features"
        self.extend(Axis(f"{path}.weight", 1, block))
        self.open(path, layer, layer.out_features)

    def norm(self, path: str, layer: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.GroupNorm) -> None:
        """Scale, shift and running statistics have an entry for each channel."""
        if self.shape == "flat" or not self.groups:
            raise self.unknown(f"{path}, a norm of flattened maps or of the input")
        floating = [name for name, tensor in layer.state_dict().items() if tensor.is_floating_point()]
        self.extend(*(Axis(f"{path}.{name}", 0) for name in floating))
        if isinstance(layer, nn.GroupNorm):
            if not layer.affine:  # it has no tensors by which its channels could be counted
                raise self.unknown(f"{path}, a GroupNorm without scale and shift")
            unit = math.lcm(self.groups[-1].unit, layer.num_channels // layer.num_groups)
            self.groups[-1] = replace(self.groups[-1], unit=unit)
        elif layer.affine:
            self.groups[-1] = replace(self.groups[-1], scale=f"{path}.weight")

    def flatten(self, start: object, end: object) -> None:
        """Process a flattening, after which each channel is a block of all pixels of its map."""
        if (start, end) != (1, -1) or self.shape not in ("input", "maps"):
            raise self.unknown("a flattening other than flatten(1) of maps or of the input")
        self.shape = "flat"

    def open(self, path: str, layer: nn.Module, size: int) -> None:
        """Start the group of the output channels of the layer ``path``."""
        self.groups.append(ChannelGroup(path, size, tuple(Axis(f"{path}.{n}", 0) for n, _ in layer.named_parameters())))

    def extend(self, *axes: Axis) -> None:
        """Add axes to the current group; the channels of the model's input are in no group."""
        if self.groups:
            self.groups[-1] = replace(self.groups[-1], axes=self.groups[-1].axes + axes)
