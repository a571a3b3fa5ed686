"""FedCluster: FedAvg within groups of similar hospitals, as FedCVR (section 4.2) uses it, after
You, Lu, Wang, Yan: FedDDB: Clustered Federated Learning based on Data Distribution Difference. ACAI
2022.

Grouping here: for `warmup` rounds all sites share one model. The server adds up each site's
*released* updates and groups the sites by the cosine similarity of those sums in weight space
(average linkage), then runs FedAvg in each group. Only releases are used, so the grouping is
post-processing and costs no privacy; under strong noise it may be close to random, and the result
says how the sites were grouped.

| here | meaning |
|---|---|
| `params` | one model a cluster, (clusters, n) |
| `direction` | sum of a site's released updates during the warm-up, (sites, n) |
| `group` | cluster of each site; all 0 during the warm-up |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.cluster import hierarchy

from suture.methods.base import Answer, Arrays, Needs, State, Trained, Weighting, mean_delta
from suture.methods.declared import NETWORKS, Choice, Citation, Declared, Setup
from suture.methods.fedavg import Weighted


@dataclass(frozen=True)
class FedCluster(Trained):
    """Clustered FedAvg; every site is served by its cluster's model."""

    clusters: int = 2
    warmup: int = 5
    weighting: Weighting = "size"
    name: str = "fedcluster"
    label: str = "FedCluster"
    needs: Needs = "each"

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """One model; room for as many as there are clusters."""
        return {
            "params": np.repeat(self.network.init(rng)[None, :], self.clusters, axis=0),
            "sites": np.array(list(sites), dtype=np.str_),
            "group": np.zeros(len(sites), np.int64),
            "direction": np.zeros((len(sites), self.network.n_params), np.float32),
            "round": np.array(0),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        """The model of the site's cluster."""
        return {"params": state["params"][_group(state, site)]}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """FedAvg in each cluster; at the end of the warm-up, the clusters are formed."""
        new = {name: array.copy() for name, array in state.items()}
        new["round"] = np.array(int(state["round"]) + 1)
        groups = {answer.site: _group(state, answer.site) for answer in answers}
        for cluster in sorted(set(groups.values())):
            members = [answer for answer in answers if groups[answer.site] == cluster]
            step = mean_delta(members, self.weighting)
            new["params"][cluster] = (state["params"][cluster] - step).astype(np.float32)
        if int(state["round"]) < self.warmup:
            row = {site: i for i, site in enumerate(state["sites"].tolist())}
            for answer in answers:
                new["direction"][row[answer.site]] += answer.payload["delta"]
            if int(new["round"]) == self.warmup:
                new["group"] = group_by_direction(new["direction"], self.clusters)
                new["params"][:] = new["params"][0]
                new["direction"] = new["direction"][:, :0]
        return new

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The risk by the model of the site's cluster; a site unknown to the study gets cluster
        0."""
        return self.network.predict(np.ascontiguousarray(state["params"][_group(state, site)]), x)

    def facts(self, state: State) -> dict[str, object]:
        """Which sites were grouped together, for the result."""
        return {"groups": dict(zip(state["sites"].tolist(), state["group"].tolist(), strict=True))}


class Clustered(Weighted):
    """FedCluster's own."""

    clusters: int = Field(default=2, ge=1)
    warmup: int = Field(default=5, ge=1)


def build(setup: Setup) -> FedCluster:
    """From a study."""
    own = Clustered.model_validate(setup.settings)
    return FedCluster(setup.network, setup.local, own.clusters, own.warmup, own.weighting or "size")


DECLARED = Declared(
    "fedcluster",
    build,
    Clustered,
    cites=(
        Citation(
            "FedDDB: Clustered Federated Learning based on Data Distribution Difference",
            "You et al.",
            2022,
            "ACAI 2022",
        ),
    ),
    space=lambda settings: (Choice("method.clusters", (2, 3, 4)), Choice("method.warmup", (2, 5))),
    outcomes=NETWORKS,
)


def group_by_direction(direction: NDArray[np.float32], clusters: int) -> NDArray[np.int64]:
    """Cluster numbers from the cosine similarity of released directions; the largest cluster is
    number 0.

    Sites that sent nothing during the warm-up have no direction and join the largest cluster.

    >>> import numpy as np
    >>> group_by_direction(np.array([[1.0, 0.1], [0.9, 0.0], [-1.0, 0.2], [0.0, 0.0]], np.float32), 2).tolist()
    [0, 0, 1, 0]
    """
    norms = np.linalg.norm(direction, axis=1)
    known = np.flatnonzero(norms > 0)
    group = np.zeros(len(direction), np.int64)
    if len(known) < 2 or clusters < 2:
        return group
    tree = hierarchy.linkage(direction[known].astype(np.float64), method="average", metric="cosine")
    found = hierarchy.fcluster(tree, t=clusters, criterion="maxclust")
    sizes = {number: int(np.sum(found == number)) for number in np.unique(found)}
    first = {number: int(np.argmax(found == number)) for number in sizes}
    ranked = sorted(sizes, key=lambda number: (-sizes[number], first[number]))
    group[known] = [ranked.index(number) for number in found]
    return group


def _group(state: State, site: str) -> int:
    at = np.flatnonzero(state["sites"] == site)
    return int(state["group"][at[0]]) if len(at) else 0
