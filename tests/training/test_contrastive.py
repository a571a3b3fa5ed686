"""MOON's local training against PyTorch's derivatives of the paper's loss, and against FedAvg where
they must agree."""

import numpy as np
import pytest
from support.reference import contrastive_loss

from suture.engine import conduct
from suture.errors import PrivacyError, StudyError
from suture.methods.moon import Moon
from suture.models.dense import Dense
from suture.privacy.door import rehearse
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.study import Study
from suture.training.contrastive import (
    Pull,
    gradient,
    representation,
    train_contrastive,
    unit_rows,
)
from suture.training.local import Local
from suture.training.mechanism import train


def table(rows=40, features=3, classes=2, seed=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    return Patients(x, rng.integers(0, classes, rows).astype(np.int32), np.arange(rows + 1))


def models(network, count=3):
    return [network.init(np.random.default_rng(i)) for i in range(count)]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_gradient_is_pytorchs_of_the_papers_loss(activation, outputs):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    network = Dense((3, 6, 5, outputs), activation)
    data = table(classes=max(2, outputs))
    here, glob, prev = models(network)
    mu, temperature = 0.7, 0.5
    weights = np.array([1.0, 2.5, 0.5][: network.classes])
    x = data.x.astype(np.float64)
    to, away = (unit_rows(representation(network, m.astype(np.float64), x)) for m in (glob, prev))
    pull = Pull(to, away, mu, temperature)
    ours = gradient(network, here.astype(np.float64), x, data.y, weights, pull)

    def forward(parameters):
        z = torch.tensor(x)
        for i in range(0, len(parameters) - 2, 2):
            z = z @ parameters[i] + parameters[i + 1]
            z = torch.relu(z) if activation == "relu" else torch.tanh(z)
        return z, z @ parameters[-2] + parameters[-1]

    def tensors(flat, grad=False):
        parts = [part for pair in network.layers(flat) for part in pair]
        return [torch.tensor(part.astype(np.float64), requires_grad=grad) for part in parts]

    mine = tensors(here, grad=True)
    z, scores = forward(mine)
    with torch.no_grad():
        z_glob, z_prev = forward(tensors(glob))[0], forward(tensors(prev))[0]
    sims = torch.stack(
        [functional.cosine_similarity(z, other, dim=1) for other in (z_glob, z_prev)], dim=1
    )
    contrast = functional.cross_entropy(
        sims / temperature, torch.zeros(len(x), dtype=torch.long), reduction="none"
    )
    y, w = (
        torch.tensor(data.y.astype(np.int64)),
        torch.tensor(weights)[torch.tensor(data.y.astype(np.int64))],
    )
    if outputs == 1:
        entropy = functional.binary_cross_entropy_with_logits(
            scores[:, 0], y.double(), reduction="none"
        )
    else:
        entropy = functional.cross_entropy(scores, y, reduction="none")
    (w * entropy + mu * contrast).mean().backward()
    theirs = np.concatenate([part.grad.numpy().ravel() for part in mine])
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        contrastive_loss(z.detach().numpy(), to, away, temperature),
        contrast.detach().numpy(),
        rtol=1e-9,
    )


def test_the_loss_by_hand():
    """z at 45 degrees between the global model's and the previous one's: log 2. At the global
    model's: log(1 + e^-2)."""
    to, away = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert contrastive_loss(np.array([[2.0, 2.0]]), to, away, 0.5)[0] == pytest.approx(np.log(2))
    assert contrastive_loss(np.array([[7.0, 0.0]]), to, away, 0.5)[0] == pytest.approx(
        np.log1p(np.exp(-2))
    )


@pytest.mark.parametrize("mu", [0.0, 5.0])
def test_without_contrast_and_in_the_first_round_it_is_fedavg(mu):
    """Several rows a patient, momentum, class weights: the batches and the steps are those of the
    compiled kernel."""
    network = Dense((3, 5, 1))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)).astype(np.float32)
    data = Patients(x, (x[:, 0] > 0).astype(np.int32), np.array([0, *range(3, 50), 50]))
    local = Local(epochs=3, batch=8, rate=0.1, momentum=0.5, class_weights=(1.0, 2.0))
    glob, other, _ = models(network)
    previous = glob if mu else other
    ours = train_contrastive(network, glob, previous, data, local, mu, 0.5, seeded_key(4))
    np.testing.assert_allclose(
        ours, train(network, glob, data, local, seeded_key(4)), rtol=2e-5, atol=2e-6
    )


def test_the_contrast_turns_representations_to_the_global_model():
    network, data = Dense((3, 8, 1)), table(200)
    glob, previous, _ = models(network)
    x = data.x.astype(np.float64)
    to, away = (
        unit_rows(representation(network, m.astype(np.float64), x)) for m in (glob, previous)
    )

    def nearer(mu):
        trained = train_contrastive(
            network,
            glob,
            previous,
            data,
            Local(epochs=20, batch=20, rate=0.3),
            mu,
            0.5,
            seeded_key(1),
        )
        return contrastive_loss(
            representation(network, trained.astype(np.float64), x), to, away, 0.5
        ).mean()

    assert nearer(5.0) < nearer(0.0) - 0.02


def test_the_previous_model_stays_at_the_site():
    network = Dense((3, 4, 1))
    method = Moon(network, Local(rate=0.1))
    state = method.init(["a"], np.random.default_rng(0))
    sent, own = rehearse(method, table(), {}, method.broadcast(state, "a"), None, seeded_key(1))
    assert set(sent) == {"delta"}
    np.testing.assert_array_equal(state["params"] - own["params"], sent["delta"])
    again, _ = rehearse(method, table(), own, method.broadcast(state, "a"), None, seeded_key(1))
    assert not np.array_equal(again["delta"], sent["delta"])


def test_what_it_cannot_do_is_refused():
    with pytest.raises(StudyError, match=r"hidden = \[32\]"):
        Moon(Dense((3, 1)), Local())
    with pytest.raises(StudyError, match=r"model.dropout to 0, found 0.5"):
        Moon(Dense((3, 4, 1)), Local(dropout=0.5))
    study = Study(
        name="demo",
        outcome="high_risk",
        cohort="cardio",
        method={"name": "moon"},
        privacy={"unit": "patient", "epsilon": 5},
    )
    with pytest.raises(PrivacyError, match="moon is not private"):
        conduct.run(study, threads=1)
    with pytest.raises(StudyError, match="compares representations"):
        conduct.run(study.replace(privacy=None, model={"hidden": []}), threads=1)
