"""DP-SGD by patient for residual networks, on per-sample gradients from Opacus (Yousefpour et al., arXiv:2109.12298).

The algorithm is that of `local`: every patient drawn independently with probability q, a patient's image gradients
summed, the sum clipped to C, noise N(0, (sigma C)^2), division by the expected batch. Opacus gives the gradient of each
image; sampling, sums by patient, clipping and noise are ours, because the unit is the patient and the noise comes from
the site's secret, not from PyTorch's generator. The event is therefore `local.event`, as for tables.

A batch is worked through some images at a time (a virtual batch), so that memory does not grow with it:

- *plain*: each image's gradient is formed; what is clipped is the very vector that is added.
- *ghost* (arXiv:2009.03106, through Opacus), for networks of over `GHOST` parameters when everybody has one image: only
  norms are kept, layer by layer, and a second backward pass gives the clipped sum. The norm is then compared with the
  wider margin `GHOST_ROUNDING`, since the two passes may round differently.

One thread and fixed virtual batches: the same key gives the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, MissingExtra, StudyError
from suture.models.residual import Residual, one_thread, torch_or_say
from suture.privacy.mechanisms import Keystream, derive
from suture.privacy.unit import Patients
from suture.training import local as training
from suture.training.local import Local
from suture.training.noise import normals

Floats = NDArray[np.float32]
MEMORY = 1 << 28
"""Bytes that the per-image gradients of a virtual batch may take."""
MOST_IMAGES = 256
"""Images in a virtual batch at most; more brings no speed."""
PIXELS = 1 << 19
"""Pixels in a virtual batch at most: activations take some hundred bytes a pixel."""
GHOST = 2_000_000
ROUNDING, GHOST_ROUNDING = 1e-5, 1e-3
"""Relative margin by which a norm is taken as larger than it was computed."""


def train(
    network: Residual,
    params: Floats,
    data: Patients,
    local: Local,
    key: bytes,
    anchor: Floats | None = None,
    push: Floats | None = None,
) -> Floats:
    """Parameters after local training; the randomness is a function of ``key`` alone, the input is left as it is.

    ``push`` is one number a row, added to the loss times the row's risk (`methods/fairfed`).
    """
    step = _Step(network, params, data, local, anchor, push)
    stream = Keystream(derive(key, "noise"))
    for picks, ends in training._batches(data.patients, local, derive(key, "sampling"), 1 if local.private else 64):
        for first, end in zip(np.append(0, ends[:-1]), ends, strict=True):
            step.take(picks[first:end], normals(network.n_params, stream) if local.private else None)
    return step.params()


def train_on_batches(
    network: Residual,
    params: Floats,
    data: Patients,
    local: Local,
    batches: Sequence[NDArray[np.int64]],
    noise: Floats | None = None,
    push: Floats | None = None,
) -> Floats:
    """Training on given batches with given standard-normal noise, one row a step: for tests; it protects nobody."""
    step = _Step(network, params, data, local, None, push)
    for i, batch in enumerate(batches):
        step.take(np.asarray(batch, np.int64), None if noise is None else noise[i])
    return step.params()


class _Step:
    """A network at work on one site's images."""

    def __init__(
        self,
        network: Residual,
        params: Floats,
        data: Patients,
        local: Local,
        anchor: Floats | None,
        push: Floats | None,
    ) -> None:
        self.torch = torch_or_say()
        _check(network, params, data, local, push)
        one_thread()
        self.network, self.local, self.starts = network, local, data.starts
        self.flat = self.torch.from_numpy(np.array(params, np.float32))
        self.anchor = self.flat.clone() if anchor is None else self.torch.from_numpy(np.array(anchor, np.float32))
        self.velocity = self.torch.zeros_like(self.flat)
        self.module = network.module(self.flat)
        self.parameters: list[Any] = list(self.module.parameters())
        self.x, self.y = self.torch.from_numpy(data.x), self.torch.from_numpy(data.y.astype(np.int64))
        self.push = None if push is None else self.torch.from_numpy(np.array(push, np.float32))
        weights = training.weights_of(local, data.y, network.classes)
        self.class_weights = self.torch.tensor(weights, dtype=self.torch.float32)
        self.expected = 0.0 if local.clip is None else float(min(local.batch, data.patients))
        self.most = max(1, min(MOST_IMAGES, MEMORY // (4 * network.n_params), PIXELS // network.inputs))
        self.ghost = local.clip is not None and network.n_params > GHOST and data.one_row_each
        if self.ghost:  # norms are kept layer by layer, so that activations are what fills memory
            self.most = max(1, min(MOST_IMAGES, PIXELS // network.inputs))
        self.sampled: Any = None if local.clip is None else _sampled(self.module, ghost=self.ghost)

    def params(self) -> Floats:
        """The parameters now."""
        return np.array(self.flat.numpy())

    def take(self, batch: NDArray[np.int64], noise: Floats | None) -> None:
        """One step on these patients. Everything after the noise is post-processing: it costs no privacy."""
        torch, local = self.torch, self.local
        total = torch.zeros_like(self.flat)
        seen = 0
        for rows, owners, patients in self._pieces(batch):
            seen += len(rows)
            if self.sampled is None:
                total += self._gradient(self.module, rows)
            elif patients == 1 and len(rows) > self.most:
                total += self._long(rows)
            elif self.ghost:
                total += self._ghost(rows)
            else:
                total += self._clipped(rows, owners, patients)
        if noise is not None and local.clip is not None:
            total += float((local.noise_multiplier or 0.0) * local.clip) * torch.from_numpy(noise)
        with torch.no_grad():
            gradient = total / (self.expected or float(max(1, seen)))
            gradient += local.proximal * (self.flat - self.anchor)
            self.velocity.mul_(local.momentum).add_(gradient)
            self.flat.sub_(local.rate * self.velocity)

    def _pieces(self, batch: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], int]]:
        """Virtual batches of whole patients: rows, whose they are, how many patients."""
        rows: list[NDArray[np.int64]] = []
        count = 0
        for patient in batch:
            own = np.arange(self.starts[patient], self.starts[patient + 1])
            if rows and count + len(own) > self.most:
                yield _together(rows)
                rows, count = [], 0
            rows.append(own)
            count += len(own)
        if rows:
            yield _together(rows)

    def _losses(self, module: Any, rows: NDArray[np.int64]) -> Any:
        """Each row's weighted cross-entropy, and what `push` adds."""
        torch = self.torch
        index = torch.from_numpy(rows)
        # Opacus' hooks want an input that has a gradient; nothing is done with it.
        self.shown = self.x[index].requires_grad_(self.sampled is not None)
        z, y = module(self.shown), self.y[index]
        functional = torch.nn.functional
        if self.network.outputs == 1:
            losses = functional.binary_cross_entropy_with_logits(z[:, 0], y.to(torch.float32), reduction="none")
            risk = torch.sigmoid(z[:, 0])
        else:
            losses = functional.cross_entropy(z, y, reduction="none")
            risk = 1 - torch.softmax(z, 1)[:, 0]
        losses = losses * self.class_weights[y]
        return losses if self.push is None else losses + self.push[index] * risk

    def _gradient(self, module: Any, rows: NDArray[np.int64]) -> Any:
        """The plain sum of the rows' gradients, some rows at a time."""
        torch = self.torch
        total = torch.zeros_like(self.flat)
        for at in range(0, len(rows), self.most):
            found = torch.autograd.grad(self._losses(module, rows[at : at + self.most]).sum(), self.parameters)
            total += torch.cat([part.reshape(-1) for part in found])
        return total

    def _long(self, rows: NDArray[np.int64]) -> Any:
        """One patient with more images than a virtual batch: their gradients summed without Opacus, clipped once."""
        self.sampled.disable_hooks()
        try:
            total = self._gradient(self.module, rows)
        finally:
            self.sampled.enable_hooks()
        return self._bounded(total[None], ROUNDING)[0] @ total[None] if bool(total.isfinite().all()) else total.zero_()

    def _clipped(self, rows: NDArray[np.int64], owners: NDArray[np.int64], patients: int) -> Any:
        """The sum of the patients' clipped gradients."""
        torch = self.torch
        # Asked for the input's gradient alone, PyTorch leaves out the batch's own weight gradients; the hooks run all the same.
        torch.autograd.grad(self._losses(self.sampled, rows).sum(), self.shown)
        each = torch.cat([p.grad_sample.reshape(len(rows), -1) for p in self.parameters], 1)
        for parameter in self.parameters:
            parameter.grad = parameter.grad_sample = None
        if patients < len(rows):
            each = torch.zeros(patients, each.shape[1]).index_add_(0, torch.from_numpy(owners), each)
        factors, finite = self._bounded(each, ROUNDING)
        if not bool(finite.all()):  # 0 times infinity is not 0
            each = torch.where(finite[:, None], each, 0.0)
        return factors @ each

    def _bounded(self, each: Any, margin: float) -> tuple[Any, Any]:
        """What each patient's gradient is multiplied by so that its norm is at most C; 0 where it is not finite."""
        return self._factors(self.torch.linalg.vector_norm(each, dim=1), margin)

    def _factors(self, norms: Any, margin: float) -> tuple[Any, Any]:
        finite = norms.isfinite()
        factors = ((self.local.clip or 0.0) / (norms * (1 + margin))).clamp(max=1.0)
        return self.torch.where(finite, factors, 0.0), finite

    def _ghost(self, rows: NDArray[np.int64]) -> Any:
        """The same from norms alone; an image whose gradient is not finite is left out before the second pass."""
        losses = self._losses(self.sampled, rows)
        losses.sum().backward(retain_graph=True)
        factors, finite = self._factors(self.sampled.get_norm_sample().detach(), GHOST_ROUNDING)
        self.sampled.disable_hooks()
        try:
            if not bool(finite.all()):
                kept = rows[finite.numpy()]
                if not len(kept):
                    return self.torch.zeros_like(self.flat)
                losses, factors = self._losses(self.module, kept), factors[finite]
            found = self.torch.autograd.grad((losses * factors).sum(), self.parameters)
        finally:
            self.sampled.enable_hooks()
            for parameter in self.parameters:
                parameter.grad = None
        return self.torch.cat([part.reshape(-1) for part in found])


def _together(rows: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(own) for own in rows]), len(rows)


def _sampled(module: Any, *, ghost: bool) -> Any:
    """The module with Opacus' hooks on it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on import, about parts that are not used here
            import torch.distributed.fsdp  # noqa: F401 (Opacus uses it without importing it)
            from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    except ImportError:
        raise MissingExtra(
            "private training on images needs Opacus; install it: pip install 'suture[imaging]'"
        ) from None
    if ghost:
        return GradSampleModuleFastGradientClipping(module, loss_reduction="sum")
    return GradSampleModule(module, loss_reduction="sum")


def _check(network: Residual, params: Floats, data: Patients, local: Local, push: Floats | None) -> None:
    network.check(params, data.x)
    if data.patients < 1:
        raise DataError("expected at least one patient to train on, found none")
    if data.y.min() < 0 or data.y.max() >= network.classes:
        outside = int(np.sum((data.y < 0) | (data.y >= network.classes)))
        raise DataError(f"expected outcomes within 0..{network.classes - 1}, found {outside} rows outside")
    if isinstance(local.class_weights, tuple) and len(local.class_weights) != network.classes:
        raise StudyError(f"expected {network.classes} class weights, found {len(local.class_weights)}")
    if local.dropout:
        raise StudyError("residual networks train without dropout; leave out model.dropout")
    if push is not None and push.shape != (data.rows,):
        raise StudyError(f"expected one push a row ({data.rows}), found shape {push.shape}")
