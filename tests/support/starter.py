"""The files that `suture init --files` writes, with a study of local training in place of the
recommended method: what tests of ledgers, budgets and erasure are about."""

from suture.cohorts import starter
from suture.study import Study


def write_starter(folder, *, files, patients):
    """As the command writes them, and then FedAdam with a trusted sum."""
    written = starter.write_starter(folder, files=files, patients=patients)
    method = {"name": "fedadam", "rounds": 40, "local_epochs": 2}
    study = Study.from_toml(written[0]).replace(method=method, protection={"sum": "trusted"})
    written[0].write_text(study.to_toml(), encoding="utf-8")
    return written
