"""Result: metrics, privacy statement, bytes, history and model of a run; what a notebook, a page
and a test look at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError
from suture.evaluation.metrics import NAMES
from suture.privacy.files import write_whole

if TYPE_CHECKING:
    import pandas as pd
    from altair.typing import ChartType
    from rich.console import RenderableType


class Result:
    """What a run found. ``data`` is exactly the content of ``result.json``.

    >>> Result({"name": "demo", "method": "fedavg", "methods": {"fedavg": {"label": "FedAvg", "metrics": {}}}})
    <Result 'demo': fedavg>
    """

    def __init__(
        self,
        data: dict[str, Any],
        model: Mapping[str, NDArray[Any]] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.data = data
        self.model = dict(model or {})
        """The primary method's server state (first seed): ``params`` is the flat weight vector."""
        self.folder = folder

    @property
    def metrics(self) -> dict[str, Any]:
        """The primary method's metrics: ``global``, ``sites``, ``worst_site``, ``groups``."""
        return dict(self.data["metrics"])

    @property
    def privacy(self) -> dict[str, Any]:
        """The primary method's privacy statement, in figures and words."""
        return dict(self.data["privacy"])

    @property
    def history(self) -> list[dict[str, Any]]:
        """The primary method's metrics after every round."""
        return list(self.data["history"])

    def for_release(self) -> Result:
        """The result without exact figures about real patients: what was paid for, and what is
        public.

        A result of generated patients is returned as it is. A simulation, and a study on real
        patients that promises nothing, have nothing that could be released.
        """
        terms = self.data.get("release", {"patients": "real", "exact": True})
        if terms["patients"] == "generated" or not (
            terms["exact"] or terms["patients"] == "simulation"
        ):
            return self
        if terms["patients"] == "simulation" or not self.data["privacy"]["protected"]:
            why = "is a simulation" if terms["patients"] == "simulation" else "promises no privacy"
            raise RunError(
                f"study {self.data['name']!r} {why}: no part of its result is for release"
            )
        kept = {key: value for key, value in self.data.items() if key not in _EXACT}
        kept["methods"] = {name: _released(found) for name, found in self.data["methods"].items()}
        lead = kept["methods"][self.data["method"]]
        kept |= {"metrics": lead["metrics"], "history": lead["history"], "warnings": []}
        sites = self.data["cohort"]["sites"]
        public = {
            name: {key: about.get(key) for key in ("region", "train")}
            for name, about in sites.items()
        }
        kept["cohort"] = {"source": self.data["cohort"]["source"], "sites": public}
        kept["release"] = {**terms, "exact": False, "words": ""}
        return Result(kept, self.model, self.folder)

    def to_frame(self, by: str = "method") -> pd.DataFrame:
        """A table of metrics: one row a method (``by="method"``), hospital (``"site"``) or round
        (``"round"``)."""
        import pandas as pd

        if by == "method":
            rows = [
                {
                    "method": name,
                    **{key: found["metrics"]["global"].get(key) for key in NAMES},
                    "epsilon": found["privacy"]["epsilon"],
                    "bytes_up": found["communication"]["bytes_up"],
                    "bytes_down": found["communication"]["bytes_down"],
                }
                for name, found in self.data["methods"].items()
            ]
        elif by == "site":
            rows = [
                {
                    "method": name,
                    "site": site,
                    **metrics,
                    "epsilon": found["privacy"]["sites"].get(site),
                }
                for name, found in self.data["methods"].items()
                for site, metrics in found["metrics"]["sites"].items()
            ]
        elif by == "round":
            rows = [
                {
                    "method": name,
                    "round": entry["round"],
                    **entry["global"],
                    "epsilon": entry.get("epsilon"),
                }
                for name, found in self.data["methods"].items()
                for entry in found["history"]
            ]
        else:
            raise ValueError(f'by: expected "method", "site" or "round", found {by!r}')
        return pd.DataFrame(rows)

    def figures(self) -> dict[str, ChartType]:
        """Every figure of the report, by name."""
        from suture.report.figures import figures_of

        return figures_of(self.data)

    def predict(self, columns: Mapping[str, Any]) -> NDArray[np.float32]:
        """Risk of new rows, given as raw columns named as in the schema (a dict of arrays or a
        DataFrame); for survival, by the end of each interval."""
        from suture.methods.registry import declared
        from suture.models.hazards import proportional
        from suture.models.network import rebuilt
        from suture.schema.table import Schema
        from suture.site.reading import encode_rows

        schema, method = Schema.parse(self.data["model"]["schema"]), declared(self.data["method"])
        x = encode_rows(columns, schema)
        if method.readable(schema):
            known = method.concepts(schema)
            logit = (
                known.matrix(x).astype(np.float64) @ self.model["weights"] + self.model["bias"][0]
            )
            if "hazard" in self.model:
                return proportional(logit, self.model["hazard"])
            return np.asarray(1 / (1 + np.exp(-logit)), np.float32)
        if "params" not in self.model:
            raise RunError(
                f"method {self.data['method']!r} keeps no global model; its models stay at the "
                "hospitals"
            )
        if self.data["model"].get("scaling") == "site":
            raise RunError(
                'model.scaling = "site": each hospital scales with means of its own, so only it '
                "can score rows"
            )
        params = np.ascontiguousarray(np.atleast_2d(self.model["params"])[0], dtype=np.float32)
        return rebuilt(self.data["model"]).predict(params, x)

    def save(self, folder: str | Path) -> Path:
        """Write ``result.json``, ``model.npz`` and ``report.html``; returns the folder."""
        from suture.report.page import write

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write(self.data, folder / "report.html")
        save_model(folder / "model.npz", self.model)
        write_whole(
            folder / "result.json", json.dumps(self.data, indent=1, allow_nan=False).encode()
        )
        self.folder = folder
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read a result back from its folder."""
        folder = Path(folder)
        try:
            data = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            with np.load(folder / "model.npz", allow_pickle=False) as archive:
                model = {name: archive[name] for name in archive.files}
        except FileNotFoundError:
            unfinished = (folder / "run.json").exists()
            hint = f"; it is unfinished: suture run --resume {folder}" if unfinished else ""
            raise RunError(f"{folder} holds no finished run (no result.json){hint}") from None
        except (OSError, ValueError) as error:
            raise RunError(f"the result in {folder} cannot be read: {error}") from None
        return cls(data, model, folder)

    def __repr__(self) -> str:
        return f"<Result {self.data.get('name')!r}: {', '.join(self.data.get('methods', {}))}>"

    def __rich__(self) -> RenderableType:
        from suture.report.console import summary_table

        return summary_table(self.data)

    def _repr_html_(self) -> str:
        from suture.report.console import html_repr

        return html_repr(self.data)


_EXACT = ("metrics", "history", "comparison", "profiles", "warnings")
"""What holds exact figures about patients at the top of a result."""
_EXACT_OF_A_METHOD = ("per_seed", "roc", "calibration", "seconds", "dropouts")


def _released(found: dict[str, Any]) -> dict[str, Any]:
    """One method's part without exact figures: of its history the rounds and what they had cost."""
    kept = {key: value for key, value in found.items() if key not in _EXACT_OF_A_METHOD}
    kept["metrics"] = {
        "global": {},
        "sites": {},
        "groups": {},
        "mean_site": {},
        "worst_site": {"site": None},
    }
    history = [
        {"round": one["round"], "global": {}, "sites": {}, "epsilon": one.get("epsilon")}
        for one in found["history"]
    ]
    empty: dict[str, Any] = {
        "roc": {"fpr": [], "tpr": []},
        "calibration": {"predicted": [], "observed": [], "count": []},
    }
    return {**kept, **empty, "history": history, "per_seed": [], "seconds": None, "dropouts": {}}


def save_model(path: Path, model: Mapping[str, NDArray[Any]]) -> None:
    """The model's arrays as one ``.npz``, replaced whole."""
    import io

    buffer = io.BytesIO()
    arrays: dict[str, Any] = dict(model)
    np.savez(buffer, **arrays)
    write_whole(path, buffer.getvalue())
