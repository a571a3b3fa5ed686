# %% [markdown]
# # A study from Python
# Five generated hospitals learn a cardiovascular risk model together, under patient-level differential privacy.
# Open this file as a notebook (VS Code, Jupytext) or run it: `python examples/notebook.py [FOLDER]`.

# %%
import sys
from pathlib import Path

import rich

import suture
from suture.report.figures import save

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/notebook")

# %% The promise comes first: nothing has been read or generated yet.
study = suture.Study(
    name="notebook",
    outcome="high_risk",
    cohort={"name": "cardio", "patients": 3000},
    method={"name": "fedadam", "rounds": 20, "local_epochs": 1},
    privacy={"unit": "patient", "epsilon": 8.0},
    evaluation={"compare": ["alone"]},
)

# %%
result = suture.run(study)
rich.print(result)  # in a notebook, `result` at the end of a cell shows the same table

# %% Methods beside each other, hospitals beside each other, and what each hospital's ledger says.
print(result.to_frame()[["method", "auc", "f1", "ece", "epsilon"]].round(3).to_string(index=False))
print(result.to_frame("site")[["method", "site", "auc", "epsilon"]].round(3).to_string(index=False))
print(result.privacy["statement"].split("\n\n")[1])

# %% A figure, and everything else: result.json, model.npz, report.html.
result.save(folder)
save(result.figures()["convergence"], folder / "convergence.svg")
print(f"report: {folder / 'report.html'}")

# %% Back from the folder, the model scores new patients.
again = suture.Result.load(folder)
patients = {
    "age": [41, 63],
    "systolic_bp": [118, 142],
    "diastolic_bp": [76, 90],
    "cholesterol": [190, 240],
    "smoker": [False, True],
    "diabetic": [False, False],
}
print("risk:", [round(float(risk), 3) for risk in again.predict(patients)])
