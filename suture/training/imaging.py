"""DP-SGD by patient for image networks, with per-sample gradients from Opacus (Yousefpour et al.,
arXiv:2109.12298).

The algorithm is that of `local`: every patient is drawn independently with probability q, a
patient's image gradients are summed, the sum is clipped to C, noise N(0, (sigma C)^2) is added, and
the total is divided by the expected batch. Opacus gives the gradient of each image; sampling, sums
by patient, clipping and noise are ours, because the unit is the patient and the noise comes from
the site's secret, not from PyTorch's generator. The event is therefore `local.event`, as for
tables.

A patient's gradient is always formed, and what is clipped is the very vector that is added. (Ghost
clipping, arXiv:2009.03106, takes the norm in one pass and adds in another: with weights of someone
else's choice the two need not agree, and its wider margin made one patient's path depend on
another's images.) How it is formed follows from the network and the patient's own images alone:

- networks of up to `LARGE` parameters: by Opacus, for some images of several patients at a time (a
  virtual batch), so that memory does not grow with the batch;
- larger networks, and patients with more images than a virtual batch: patient by patient, without
  Opacus. From about ten million parameters on this is also faster: one backward pass instead of
  two.

A virtual batch's other images change an image's gradient by float32 rounding (measured: 4e-7 of its
norm, with weights as they are drawn). One thread and fixed virtual batches: the same key gives the
same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from suture.errors import MissingExtra, StudyError
from suture.models.dense import Floats
from suture.models.network import Network
from suture.models.residual import Residual, one_thread, torch_or_say
from suture.privacy.noise.source import Keystream, derive
from suture.privacy.unit import Patients
from suture.training.dpsgd import SMALLEST
from suture.training.local import (
    Indices,
    Local,
    batches,
    check,
    expected_batch,
    known,
    loss_weights,
    normals,
)

if TYPE_CHECKING:
    from opacus.grad_sample import GradSampleModule
    from torch import Tensor, nn

MEMORY = 1 << 28
"""Bytes that the per-image gradients of a virtual batch may take."""
MOST_IMAGES = 256
"""The most images in a virtual batch; more brings no speed."""
PIXELS = 1 << 19
"""The most pixels in a virtual batch: activations take some hundred bytes per pixel."""
LARGE = 2_000_000
"""Networks with more parameters than this work on one patient at a time."""
ROUNDING = 1e-5
"""Relative margin by which a norm is taken to be larger than computed."""


def train_images(
    network: Network,
    params: Floats,
    data: Patients,
    local: Local,
    key: bytes,
    anchor: Floats | None = None,
    push: Floats | None = None,
) -> Floats:
    """Parameters after local training; see `mechanism.train`."""
    if not isinstance(network, Residual):
        raise StudyError(f"training on images needs a residual network, found {network.kind!r}")
    step = _Step(network, params, data, local, anchor, push)
    stream = Keystream(derive(key, "noise"))
    chunk = 1 if local.private else 64
    for picks, ends in batches(data, local, derive(key, "sampling"), chunk):
        for batch in np.split(picks, ends[:-1]):
            step.take(batch, normals(network.n_params, stream) if local.private else None)
    return step.params()


class _Step:
    """A network in training on one site's images."""

    def __init__(
        self,
        network: Residual,
        params: Floats,
        data: Patients,
        local: Local,
        anchor: Floats | None,
        push: Floats | None,
    ) -> None:
        self.torch = torch = torch_or_say()
        network.check(params, data.x)
        check(network, data, local, push)
        if local.dropout:
            raise StudyError("residual networks train without dropout; leave out model.dropout")
        one_thread()
        y = known(data.y, network.classes)
        inside = y < network.classes
        self.network, self.local, self.starts = network, local, data.starts
        self.flat: Tensor = torch.from_numpy(np.array(params, np.float32))
        origin = np.array(params if anchor is None else anchor, np.float32)
        self.anchor: Tensor = torch.from_numpy(origin)
        self.velocity: Tensor = torch.zeros_like(self.flat)
        self.module = network.module(self.flat)
        self.parameters = list(self.module.parameters())
        self.x: Tensor = torch.from_numpy(data.x)
        self.y: Tensor = torch.from_numpy(np.where(inside, y, 0).astype(np.int64))
        self.push: Tensor | None = None
        if push is not None:
            self.push = torch.from_numpy(np.where(inside, push, 0).astype(np.float32))
        # An outcome outside the classes has weight 0, whatever class it is taken for.
        weights = loss_weights(local, data.y, network.classes)[y]
        self.weights: Tensor = torch.from_numpy(weights.astype(np.float32))
        self.expected = expected_batch(data.size, local)
        self.large = network.n_params > LARGE
        # A large network keeps one gradient at a time, so activations are what fills memory.
        fits = MOST_IMAGES if self.large else MEMORY // (4 * network.n_params)
        self.most = max(1, min(MOST_IMAGES, fits, PIXELS // network.inputs))
        opacus = local.clip is not None and not self.large
        self.sampled = _sampled(self.module) if opacus else None

    def params(self) -> Floats:
        return np.array(self.flat.numpy())

    def take(self, batch: Indices, noise: Floats | None) -> None:
        """Take one step on these patients. Everything after the noise is post-processing, which
        costs no privacy."""
        torch, local = self.torch, self.local
        total = torch.zeros_like(self.flat)
        seen = 0
        for rows, owners, patients in self._pieces(batch):
            seen += len(rows)
            if local.clip is None:
                total += self._gradient(rows)
            elif self.sampled is None or len(rows) > self.most:
                total += self._alone(rows)
            else:
                total += self._clipped(self.sampled, rows, owners, patients)
        if noise is not None and local.clip is not None:
            total += float((local.noise_multiplier or 0.0) * local.clip) * torch.from_numpy(noise)
        with torch.no_grad():
            gradient = total / (self.expected or float(max(1, seen)))
            gradient += local.proximal * (self.flat - self.anchor)
            self.velocity.mul_(local.momentum).add_(gradient)
            self.flat.sub_(local.rate * self.velocity)

    def _pieces(self, batch: Indices) -> Iterator[tuple[Indices, Indices, int]]:
        """Virtual batches of whole patients: rows, their owners, how many patients."""
        alone = self.large and self.local.clip is not None
        rows: list[Indices] = []
        count = 0
        for patient in batch:
            own = np.arange(self.starts[patient], self.starts[patient + 1])
            if rows and (alone or count + len(own) > self.most):
                yield _together(rows)
                rows, count = [], 0
            rows.append(own)
            count += len(own)
        if rows:
            yield _together(rows)

    def _losses(self, module: nn.Module, rows: Indices) -> Tensor:
        """Each row's weighted cross-entropy, and what ``push`` adds."""
        torch = self.torch
        index = torch.from_numpy(rows)
        # Opacus' hooks need an input that has a gradient; it is not used.
        self.shown = self.x[index].requires_grad_(self.sampled is not None)
        z, y = module(self.shown), self.y[index]
        f = torch.nn.functional
        if self.network.outputs == 1:
            z, wanted = z[:, 0], y.to(torch.float32)
            losses = f.binary_cross_entropy_with_logits(z, wanted, reduction="none")
            risk = torch.sigmoid(z)
        else:
            losses, risk = f.cross_entropy(z, y, reduction="none"), 1 - torch.softmax(z, 1)[:, 0]
        losses = losses * self.weights[index]
        return losses if self.push is None else losses + self.push[index] * risk

    def _gradient(self, rows: Indices) -> Tensor:
        """The plain sum of the rows' gradients, some rows at a time."""
        torch = self.torch
        total: Tensor = torch.zeros_like(self.flat)
        for at in range(0, len(rows), self.most):
            loss = self._losses(self.module, rows[at : at + self.most]).sum()
            found = torch.autograd.grad(loss, self.parameters)
            total += torch.cat([part.reshape(-1) for part in found])
        return total

    def _alone(self, rows: Indices) -> Tensor:
        """One patient's clipped gradient, formed without Opacus."""
        if self.sampled is not None:
            self.sampled.disable_hooks()
        try:
            total = self._gradient(rows)
        finally:
            if self.sampled is not None:
                self.sampled.enable_hooks()
        factors, finite = self._factors(total[None])
        return total.mul_(factors[0]) if bool(finite[0]) else total.zero_()

    def _clipped(
        self, module: GradSampleModule, rows: Indices, owners: Indices, patients: int
    ) -> Tensor:
        """The sum of the patients' clipped gradients."""
        torch = self.torch
        # Asked for the input's gradient alone, PyTorch leaves out the batch's own weight gradients;
        # the hooks still run.
        torch.autograd.grad(self._losses(module, rows).sum(), self.shown)
        samples = [_taken(parameter).reshape(len(rows), -1) for parameter in self.parameters]
        each = torch.cat(samples, 1)
        if patients < len(rows):
            sums = torch.zeros(patients, each.shape[1])
            each = sums.index_add_(0, torch.from_numpy(owners), each)
        factors, finite = self._factors(each)
        if not bool(finite.all()):  # 0 times infinity is not 0
            each = torch.where(finite[:, None], each, 0.0)
        return factors @ each

    def _factors(self, each: Tensor) -> tuple[Tensor, Tensor]:
        """What brings each patient's norm to C at most (0 if not finite), and who is finite."""
        norms = self.torch.linalg.vector_norm(each, dim=1)
        factors = ((self.local.clip or 0.0) / (norms * (1 + ROUNDING))).clamp(max=1.0)
        # Below the normal floats a factor would be rounded by up to its own size.
        finite = norms.isfinite() & (factors >= SMALLEST)
        return self.torch.where(finite, factors, 0.0), finite


def _together(rows: list[Indices]) -> tuple[Indices, Indices, int]:
    owners = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
    return np.concatenate(rows), owners, len(rows)


def _taken(parameter: nn.Parameter) -> Tensor:
    """The per-sample gradients that Opacus left on a parameter, which are removed from it."""
    found: Tensor = parameter.grad_sample  # type: ignore[attr-defined]
    parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]
    return found


def _sampled(module: nn.Module) -> GradSampleModule:
    """The module with Opacus' hooks on it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on import, about parts that are not used here
            import torch.distributed.fsdp  # noqa: F401 (Opacus uses it without importing it)
            from opacus.grad_sample import GradSampleModule
    except ImportError:
        raise MissingExtra(
            "private training on images needs Opacus; install it: pip install 'suture[imaging]'"
        ) from None
    return GradSampleModule(module, loss_reduction="sum")
