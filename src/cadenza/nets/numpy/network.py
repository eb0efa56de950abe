"""Dense networks for the batches of a replay, computed and differentiated in memory that they keep.

Each does what `Layers` does with fewer passes over memory, but slower where there are few rows. NumPy multiplies
matrices faster; torch adds a bias, applies the slope of a ReLU, and multiplies a column by a row in half of NumPy's
time. Torch's memory also begins at a cache line, which shortens each pass by a fifth.
Letters in shapes: B rows, F inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.nets.numpy.actor_critic_kernel import Array, ones

BY_RELU = torch.ops.aten.threshold_backward.grad_input


class Scratch:
    """An array [rows, width] of any content and a tensor of the same memory, which is overwritten again and again."""

    array: Array
    tensor: Tensor

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self.rows = -1
        self._room, self._block = 0, torch.empty(0, width, dtype=dtype)

    def resize(self, rows: int) -> None:
        """Change the number of rows; the content is lost where there are more than ever."""
        if rows > self._room:
            self._room, self._block = rows, self._block.new_empty(rows, self._block.shape[1])
        self.rows, self.tensor = rows, self._block[:rows]
        self.array = self.tensor.numpy()


def tanh_slope(gradient: Tensor, y: Tensor) -> None:
    """Multiply the gradient by the slope where the function returned y, in place."""
    array, result = gradient.numpy(), y.numpy()
    array *= 1 - result * result


# an activation and the product of a gradient with its slope, both in place
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Scratch], object], Callable[[Tensor, Tensor], object]]] = {
    nn.Tanh: (lambda y: np.tanh(y.array, out=y.array), tanh_slope),
    nn.ReLU: (lambda y: y.tensor.relu_(), lambda gradient, y: BY_RELU(gradient, y, 0, grad_input=gradient)),
}


class Network:
    """Layers one after the other. What they return is overwritten by their next call."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        """Make the network of linear modules, whose gradients exist, and of activations."""
        self.layers: list[DenseLayer] = []
        for module in modules:
            if isinstance(module, nn.Linear):
                assert module.weight.grad is not None
                assert module.bias.grad is not None
                gradients = module.weight.grad.T, module.bias.grad
                self.layers.append(DenseLayer(module.weight.detach().T, module.bias.detach(), *gradients))
            else:
                self.layers[-1].append(module)

    def __call__(self, x: Array) -> Array:
        """Return the output [B, O] for an input [B, F]."""
        for layer in self.layers:
            x = layer(x)
        return x

    def backward(self, gradient: Array, to_input: bool) -> Array:
        """Set the parameters' gradients from that by the output [B, O]; with `to_input`, return that by the input.

        B may be less than in the last call: the gradient is then that of its last rows. It is overwritten where an
        activation follows the last layer.
        """
        for index in reversed(range(len(self.layers))):
            gradient = self.layers[index].backward(gradient, to_input or index > 0)
        return gradient

    def input_gradient(self, rows: Array, start: int) -> Array:
        """Return the gradient of the only output by the inputs from number `start` on, for rows of the last call."""
        gradient = ones(len(rows))[:, None]
        for layer in reversed(self.layers):
            if layer.slope is not None:
                layer.slope(torch.from_numpy(gradient), torch.from_numpy(layer.outputs.array.take(rows, 0)))
            if layer is self.layers[0]:
                break
            gradient = layer.by_input(gradient)
        by_inputs: Array = gradient @ self.layers[0].weight[start:].T
        return by_inputs

    def share(self, other: Network, with_outputs: bool) -> None:
        """Use the memory of a network of the same shape for gradients, and perhaps for hidden activations.

        The processor's caches then have to hold less.
        """
        for layer, owner in zip(self.layers, other.layers, strict=True):
            layer.input_gradients = owner.input_gradients
            if with_outputs and layer is not self.layers[-1]:
                layer.outputs = owner.outputs


class DenseLayer:
    """Weights [F, O], biases [O] and their gradients, in the parameters' memory; an activation may follow."""

    activate: Callable[[Scratch], object] | None = None
    slope: Callable[[Tensor, Tensor], object] | None = None

    def __init__(self, weight: Tensor, bias: Tensor, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
        self.weight, self.bias = weight.numpy(), bias
        self.weight_gradient, self.bias_gradient = weight_gradient.numpy(), bias_gradient.numpy()
        self.outputs = Scratch(weight.shape[1], weight.dtype)
        self.input_gradients = Scratch(weight.shape[0], weight.dtype)

    def append(self, activation: nn.Module) -> None:
        """Apply an activation to the outputs."""
        self.activate, self.slope = ACTIVATIONS[type(activation)]

    def __call__(self, x: Array) -> Array:
        """Return the outputs [B, O] for an input [B, F]; `backward` reads both."""
        self.x, y = x, self.outputs
        if y.rows != len(x):
            y.resize(len(x))
        np.matmul(x, self.weight, out=y.array)
        y.tensor.add_(self.bias)
        if self.activate is not None:
            self.activate(y)
        return y.array

    def backward(self, gradient: Array, to_input: bool) -> Array:
        """Set the parameters' gradients from that by the last outputs; with `to_input`, return that by the input."""
        count = len(gradient)
        if self.slope is not None:
            self.slope(torch.from_numpy(gradient), self.outputs.tensor[-count:])
        np.matmul(self.x[-count:].T, gradient, out=self.weight_gradient)
        np.matmul(ones(count), gradient, out=self.bias_gradient)  # faster than a sum
        return self.by_input(gradient) if to_input else gradient

    def by_input(self, gradient: Array) -> Array:
        """Return the gradient [B, F] by the input from that before the activation [B, O]."""
        result = self.input_gradients
        if result.rows != len(gradient):
            result.resize(len(gradient))
        if self.weight.shape[1] == 1:  # faster than a product of two vectors
            torch.mul(torch.from_numpy(gradient), torch.from_numpy(self.weight.T), out=result.tensor)
        else:
            np.matmul(gradient, self.weight.T, out=result.array)
        return result.array
