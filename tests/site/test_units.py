"""Units, sentinels and thousands of one site's table."""

import numpy as np
import pytest

from suture.errors import DataError, StudyError
from suture.schema.table import Schema
from suture.site.cohort import load
from suture.site.reading import check_readable
from suture.site.sources import SourceSpec

SCHEMA = Schema.parse(
    {
        "patient": "id",
        "missing": "indicator",
        "include": [{"column": "chol", "min": 100}],
        "features": {
            "chol": {"kind": "number", "low": 100, "high": 300, "unit": "mg/dL"},
            "t": {"kind": "number", "low": 30, "high": 43, "unit": "°C", "label": "Temperature"},
        },
    }
)


def read(tmp_path, text, schema=SCHEMA, **about):
    path = tmp_path / "a.csv"
    path.write_text(text)
    source = SourceSpec(path=str(path), **about)
    check_readable(source, schema, "y", site="a")
    return load(source, schema, "y", site="a", holdout=0.0, split_key="k")


def values(data, low, high, column=0, digits=2):
    x = (data.train.x[:, column].astype(float) + 1) / 2 * (high - low) + low
    return sorted(np.round(x, digits).tolist())


def test_a_site_in_mmol_and_fahrenheit_gives_the_rows_of_one_in_mg_and_celsius(tmp_path):
    units = {"chol": "mmol/L", "t": "F"}
    data = read(tmp_path, "id,y,chol,t\n1,0,5,98.6\n2,1,6,104\n3,1,1,104\n", units=units)
    # the cohort rule (at least 100 mg/dL) is applied to converted values: 1 mmol/L is 38.7 mg/dL
    assert values(data, 100, 300) == [193.33, 231.99]
    assert values(data, 30, 43, 2) == [37.0, 40.0]


def test_missing_stays_missing_and_text_is_still_no_number(tmp_path):
    data = read(
        tmp_path,
        "id,y,chol,t\n1,0,5,\n2,1,6,warm\n3,1,5,-999.0\n4,1,5,98.6\n",
        units={"chol": "mmol/L", "t": "°F"},
        sentinels={"t": ("-999",)},
    )
    assert data.train.x[:, 3].sum() == 3  # marked as missing
    assert any("'t'" in problem and "1 row" in problem for problem in data.loaded.problems)
    assert not any("clipped" in warning for warning in data.loaded.warnings)


@pytest.mark.parametrize(
    "units", [{"chol": "mmHg"}, {"chol": "bananas"}, {"y": "mg/dL"}, {"x": "kg"}]
)
def test_units_that_do_not_fit_are_refused_before_rows_are_read(tmp_path, units):
    with pytest.raises(StudyError, match=r"data\.units: column"):
        read(tmp_path, "id,y,chol,t\n1,0,5,98\n", units=units)


def test_a_sentinel_of_a_column_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="did you mean 'chol'"):
        read(tmp_path, "id,y,chol,t\n1,0,5,98\n", sentinels={"cholo": ("0",)})


def test_thousands_are_removed_only_between_groups_of_three(tmp_path):
    schema = Schema.parse(
        {"patient": "id", "features": {"plt": {"kind": "number", "low": 0, "high": 400_000}}}
    )
    text = 'id,y,plt\n1,0,"150,000"\n2,1,"1,500"\n3,1,"12,5"\n4,1,90000\n'
    data = read(tmp_path, text, schema, thousands=",")
    assert values(data, 0, 400_000, digits=0) == [
        1500.0,
        90000.0,
        150000.0,
        200000.0,
    ]  # 12,5: missing
    assert any("'plt': 1 row" in problem for problem in data.loaded.problems)
    swiss = 'id,y,plt\n1,0,"150\'000,5"\n'
    data = read(tmp_path, swiss, schema, thousands="'", decimal=",")
    assert values(data, 0, 400_000, digits=1) == [150000.5]
