"""Is a sensor of our VSN split an outlier by itself? A model of all other sensors, judged at each.

    python benchmarks/vsn_sensors.py

Prints the AUC of a ridge-penalised logistic regression on the others' rows, sensor by sensor, and the
same where the sensor's acoustic and seismic columns have changed places.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from suture.cohorts.public import vsn


def main() -> None:
    cohort = vsn(1)
    columns = list(cohort.schema.features)
    x = {s.name: np.column_stack([s.table[c] for c in columns]) for s in cohort.sites}
    y = {s.name: np.asarray(s.table[cohort.outcome]) for s in cohort.sites}
    plain, exchanged = {}, {}
    for name in x:
        rest = [other for other in x if other != name]
        model = LogisticRegression(C=0.1, max_iter=2000)
        model.fit(np.concatenate([x[o] for o in rest]), np.concatenate([y[o] for o in rest]))
        swapped = np.roll(x[name], len(columns) // 2, axis=1)
        plain[name] = roc_auc_score(y[name], model.decision_function(x[name]))
        exchanged[name] = roc_auc_score(y[name], model.decision_function(swapped))
        about = f"{len(y[name])} rows, {y[name].mean():.0%} of one vehicle"
        print(f"{name}: {about}, AUC {plain[name]:.3f}, swapped {exchanged[name]:.3f}")
    lowest = sorted(plain, key=lambda name: plain[name])[:2]
    print("lowest:", ", ".join(f"{name} {plain[name]:.3f}" for name in lowest))


if __name__ == "__main__":
    main()
