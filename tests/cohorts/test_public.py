"""PhysioNet 2012 and Framingham: the rows that are kept, by another library, where the files are."""

import numpy as np
import pytest

from suture.cohorts import load
from suture.cohorts.public import data_folder
from suture.errors import DataError, StudyError


def folder_of(name):
    try:
        return data_folder(name)
    except DataError as error:
        pytest.skip(str(error))


def all_rows(cohort, column):
    return np.concatenate([site.table[column] for site in cohort.sites])


def test_physionet_is_what_pandas_finds():
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    folder = folder_of("physionet2012")
    cohort = load("physionet", 3)
    assert [len(site.table["age"]) for site in cohort.sites] == [667] * 8 + [666] * 4
    events = pd.read_parquet(folder / "events.parquet")
    died = pd.read_csv(folder / "outcomes.csv").set_index("RecordID")["In-hospital_death"]
    order = all_rows(cohort, "patient_id")
    assert sorted(order) == sorted(died.index)
    assert (all_rows(cohort, "died_in_hospital") == died.loc[order]).all()
    ph = events[(events["parameter"] == "pH") & events["value"].between(6.7, 7.8)]
    lowest = ph.groupby("record")["value"].min().reindex(order)
    np.testing.assert_allclose(all_rows(cohort, "ph_min"), lowest)
    both = events[events["parameter"].isin(["SysABP", "NISysABP"])]
    highest = both[both["value"].between(40, 260)].groupby("record")["value"].max().reindex(order)
    np.testing.assert_allclose(all_rows(cohort, "systolic_bp_max"), highest)


def test_framingham_is_free_of_disease_at_the_first_examination():
    folder_of("framingham")
    cohort = load("framingham", 3)
    assert [len(site.table["age"]) for site in cohort.sites] == [843] * 5
    assert all_rows(cohort, "cvd_in_10_years").sum() == 369
    assert len(set(all_rows(cohort, "patient_id"))) == 4215
    assert not cohort.generated


def test_people_stay_where_they_are_whatever_the_seed():
    folder_of("framingham")
    first, second = (load("framingham", seed, sites=3).sites[0].table["age"] for seed in (1, 2))
    assert (first == second).all()
    with pytest.raises(StudyError, match="sites"):
        load("framingham", 1, sites=0)


@pytest.mark.parametrize("name", ["physionet", "framingham"])
def test_absent_files_are_named_with_their_source(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SUTURE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"physionet\.org|nhlbi"):
        load(name, 1)
