"""The schema: what it accepts, what it encodes to, how it says no."""

from __future__ import annotations

import pytest

from suture.errors import StudyError
from suture.schema.table import (
    Category,
    Condition,
    Flag,
    Number,
    Schema,
    feature_names,
    rule_words,
    same_rule,
)

AGE = {"kind": "number", "low": 18, "high": 100, "unit": "years"}
SEX = {"kind": "category", "values": ["F", "M"]}


def test_shape_of_the_study_file() -> None:
    schema = Schema.parse(
        {
            "patient": "patient_id",
            "groups": ["sex", "ethnicity"],
            "features": {"age": AGE, "sex": SEX, "smoker": {"kind": "flag"}},
        }
    )
    assert schema.features["age"] == Number(low=18, high=100, unit="years")
    assert schema.features["sex"] == Category(values=("F", "M"))
    assert schema.features["smoker"] == Flag()
    assert list(schema.features) == ["age", "sex", "smoker"]
    # a missing value is filled and marked unless the study says otherwise: every feature has a
    # column that tells
    assert feature_names(schema) == (
        "age",
        "age (missing)",
        "sex = F",
        "sex = M",
        "sex (missing)",
        "smoker",
        "smoker (missing)",
    )
    assert schema.width == 7
    assert {schema.missing_rule(name) for name in schema.features} == {"indicator"}
    assert Schema.parse(schema.model_dump()) == schema


def test_indicator_columns_follow_the_declaration_only() -> None:
    features = {
        "age": AGE,
        "sex": {**SEX, "missing": "indicator"},
        "smoker": {"kind": "flag", "missing": "refuse"},
    }
    assert feature_names(Schema.parse({"missing": "fill", "features": features})) == (
        "age",
        "sex = F",
        "sex = M",
        "sex (missing)",
        "smoker",
    )
    everywhere = Schema.parse({"missing": "indicator", "features": features})
    assert feature_names(everywhere)[:2] == ("age", "age (missing)")
    assert everywhere.missing_rule("smoker") == "refuse"


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (
            {"age": {"kind": "number", "low": 18}},
            r"schema\.features\.age\.high: Field required; for example: age = ",
        ),
        (
            {"age": {"kind": "number", "low": 9, "high": 9}},
            r"schema\.features\.age: bounds must be finite and low < high",
        ),
        ({"age": {"kind": "number", "low": 0, "high": float("inf")}}, r"bounds must be finite"),
        ({"age": {"kind": "number", "low": -1.7e308, "high": 1.7e308}}, r"bounds must be finite"),
        (
            {"age": {"kind": "number", "low": "x", "high": 1}},
            r"schema\.features\.age\.low: .*valid number",
        ),
        (
            {"sex": {"kind": "category", "values": ["F"]}},
            r"schema\.features\.sex: values must be two or more different",
        ),
        ({"sex": {"kind": "category", "values": ["F", "F"]}}, r"two or more different"),
        ({"ward": {"kind": "category", "values": ["1", "1.0"]}}, r"two or more different"),
        (
            {"sex": {"kind": "category", "values": ["F", " M"]}},
            r"must not begin or end with spaces; write \['F', 'M'\]",
        ),
        (
            {"sex": {"kind": "text"}},
            r'schema\.features\.sex: kind must be "number", "category", "flag" or "image"; for',
        ),
        (
            {"sex": {}},
            r'schema\.features\.sex: kind must be "number", "category", "flag" or "image"',
        ),
        (
            {"age": {**AGE, "lo": 3}},
            r"schema\.features\.age\.lo: this setting is not known; for example",
        ),
        ({"flag": {"kind": "flag", "missing": "maybe"}}, r"schema\.features\.flag\.missing"),
        ({}, r"schema: at least one feature is needed"),
        (
            {"sex = F": {"kind": "flag"}, "sex": SEX},
            r"encoded column 'sex = F'.*rename",
        ),
    ],
)
def test_errors_name_the_field_and_show_the_fix(features: dict[str, object], says: str) -> None:
    with pytest.raises(StudyError, match=says):
        Schema.parse({"features": features})


def test_patient_is_not_a_feature_or_a_group() -> None:
    with pytest.raises(StudyError, match="patient column 'age' cannot be a feature"):
        Schema.parse({"patient": "age", "features": {"age": AGE}})
    with pytest.raises(StudyError, match="groups must differ"):
        Schema.parse({"groups": ["sex", "sex"], "features": {"age": AGE}})


def test_all_problems_at_once() -> None:
    with pytest.raises(StudyError) as caught:
        Schema.parse(
            {
                "patients": "id",
                "features": {"age": {"kind": "number", "low": 1}, "sex": {"kind": "x"}},
            }
        )
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "schema.features.age.high",
        "schema.features.sex",
        "schema.patients",
    ]


def test_the_order_of_conditions_and_values_means_nothing() -> None:
    age, sex = Condition(column="age", min=18), Condition(column="sex", values=("F", "M"))
    assert same_rule([age, sex], [Condition(column="sex", values=("M", "F")), age])
    assert not same_rule([age], [age, sex])
    assert rule_words([age, sex]) == "age from 18 and sex one of F, M"
