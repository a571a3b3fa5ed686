"""Does a table's size show? One round of DP-SGD under a declared 64 patients, audited on tables of
other sizes.

Sampling rate, steps and divisor follow the declared size, so tables with one patient more or less
run the same mechanism. Before sizes were declared, 64 against 65 patients measured 70 where 7.3 was
claimed.

    python benchmarks/declared_sizes.py
"""

import numpy as np

from suture.attacks.audit import Claim, audit, with_patient
from suture.methods.registry import MethodSpec, build
from suture.models.dense import Dense
from suture.privacy.door import rehearse
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local

DECLARED, NOISE, TRIALS = 64, 0.8, 6000
METHOD = build("fedavg", MethodSpec(), Dense((4, 1)), Local(epochs=1, batch=16, rate=0.1, clip=1.0))
MESSAGE = {"params": np.array([1, 1, 1, 1, 0], np.float32)}


def table(count):
    """So many patients, all of whom the model is unsure of, under the same declared size."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    return Patients(x, (x[:, 0] > 0).astype(np.int32), np.arange(count + 1), declared=DECLARED)


def main():
    claim = Claim.of(METHOD.round_event(1, "a", DECLARED, NOISE))
    print(
        f"declared {DECLARED}, batch 16, noise {NOISE}: claimed epsilon {claim.epsilon:.2f} at "
        f"delta {claim.delta:g}"
    )
    far = np.full((12, 4), 40.0, np.float32)
    for count in (64, 0, 640):
        absent = table(count)
        present = with_patient(
            absent, far, np.zeros(12, np.int32)
        )  # sure, and wrong: it adds as much as a patient may
        found = audit(
            lambda rows, key: rehearse(METHOD, rows, {}, MESSAGE, NOISE, key)[0],
            absent, present, claim, trials=TRIALS, key=seeded_key(1, count), direction={"delta": np.ones(5)},
        )  # fmt: skip
        print(
            f"{count} against {present.patients} patients: measured at least {found.measured:.2f}; "
            f"{found.verdict}"
        )


if __name__ == "__main__":
    main()
