"""Study files: read, written back equal, and every mistake named with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from suture.errors import StudyError
from suture.site.cohort import load
from suture.study import LifetimeSpec, Site, Study

FILES = """
[study]
name = "cardio"
outcome = "high_risk"
seed = 7

[[site]]
name = "boston"
region = "US-MA"
data = "boston.csv"
patients = 1000

[[site]]
name = "lyon"
data = { path = "lyon.csv", separator = ";", encoding = "latin-1" }
patients = 400
edition = 2

[schema]
patient = "patient_id"
groups = ["sex", "ethnicity"]
[schema.features]
age = { kind = "number", low = 18, high = 100, unit = "years" }
sex = { kind = "category", values = ["F", "M"] }
smoker = { kind = "flag" }

[method]
name = "fedadam"
rounds = 3

[privacy]
unit = "patient"
epsilon = 8.0
"""


def test_the_issue_s_shape_reads():
    study = Study.from_text(FILES)
    assert [site.name for site in study.sites] == ["boston", "lyon"]
    assert study.privacy is not None
    assert (study.privacy.epsilon, study.privacy.delta, study.privacy.accountant) == (
        8.0,
        1e-5,
        "pld",
    )
    assert study.table is not None
    assert list(study.table.features) == ["age", "sex", "smoker"]
    assert study.methods == ("fedadam",)


def test_no_privacy_table_means_no_privacy():
    assert not Study(name="a", outcome="y", cohort="cardio").private


@pytest.mark.parametrize(
    "text", [FILES, '[study]\nname = "a b"\noutcome = "high_risk"\ncohort = "cardio"\n']
)
def test_written_toml_reads_back_equal(text):
    study = Study.from_text(text)
    assert Study.from_text(study.to_toml()) == study


def test_replace_changes_part_of_a_table():
    study = Study.from_text(FILES).replace(
        method={"rounds": 9}, evaluation={"compare": ["fedavg", "fedadam"]}
    )
    assert (study.method.name, study.method.rounds) == ("fedadam", 9)
    assert study.methods == ("fedadam", "fedavg")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "lyon"', 'name = "Boston"', "found twice"),
        ('patient = "patient_id"', "", "schema.patient"),
        ("epsilon = 8.0", "", "give epsilon"),
        ("epsilon = 8.0", "epsilon = -1", "greater than 0"),
        ('unit = "patient"', 'unit = "record"', "patient"),
        ('outcome = "high_risk"', 'outcome = "smoker"', "also listed as a feature"),
        ("rounds = 3", "rounds = 0", "method.rounds"),
        ("rounds = 3", "round = 3", "no such setting; did you mean 'rounds'"),
        ("[method]", "[methods]", "unknown table 'methods'"),
        ("seed = 7", "seeds = 7", "unknown key 'seeds'"),
        ('kind = "flag"', 'kind = "bool"', "smoker"),
        ("low = 18", "low = 200", "low < high"),
        ("[study]", "[study", "not valid TOML"),
        ("seed = 7", 'cohort = "cardio"', "not both"),
        ('name = "boston"', 'name = "../boston"', "sites.0.name"),
        (
            "patients = 1000",
            "",
            "site 'boston' declares no size.*patients = 1000.*simulation = true",
        ),
        ("patients = 1000", "patients = 0", "sites.0.patients"),
        ("edition = 2", "edition = 0", "sites.1.edition"),
        ('groups = ["sex", "ethnicity"]', "rows = 0", "schema.rows"),
    ],
)
def test_mistakes_are_named(old, new, message):
    assert old in FILES
    with pytest.raises(StudyError, match=message.replace("[", r"\[")):
        Study.from_text(FILES.replace(old, new, 1))


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(StudyError, match="suture init"):
        Study.from_toml(tmp_path / "none.toml")


def test_no_sites_at_all():
    with pytest.raises(StudyError, match="cohort"):
        Study(name="a", outcome="y")


def test_passwords_are_not_written_down_and_can_be_taken_back():
    text = FILES.replace(
        'data = "boston.csv"',
        'data = { url = "postgresql://r:secret@db/heart", query = "SELECT 1" }',
    )
    study = Study.from_text(text)
    written = study.without_passwords().to_toml()
    assert "secret" not in written
    assert "postgresql://r@db/heart" in written
    assert "secret" not in repr(study)
    assert Study.from_text(written).with_passwords_of(study) == study


def test_sizes_are_declared_under_privacy_only_and_not_in_a_simulation():
    without = FILES.replace("patients = 1000", "").replace("patients = 400", "")
    simulated = Study.from_text(without.replace("seed = 7", "seed = 7\nsimulation = true"))
    assert simulated.simulation
    assert simulated.sites[0].patients is None
    assert "simulation = true" in simulated.to_toml()
    assert not Study.from_text(without.split("[privacy]")[0]).private
    assert not Study.from_text(FILES).simulation


def test_what_is_said_when_nothing_is_said():
    assert (LifetimeSpec().epsilon, LifetimeSpec().delta, LifetimeSpec().accountant) == (
        10.0,
        1e-4,
        "pld",
    )
    assert (Site(name="a").patients, Site(name="a").edition) == (None, 1)
    assert Study.from_text(FILES).table.rows == 64


# --- the digest -------------------------------------------------------------------------------------------------------

IMAGES = """
[study]
name = "films"
outcome = "ill"
[[site]]
name = "a"
data = "a.csv"
[schema]
[schema.features]
film = { kind = "image" }
[images]
size = 32
"""
COHORT = '[study]\nname = "c"\noutcome = "high_risk"\ncohort = { name = "cardio", patients = 3000, split = "iid" }\n'
RICH = FILES.replace(
    'groups = ["sex", "ethnicity"]',
    'groups = ["sex", "ethnicity"]\nprotected = { column = "sex", values = ["F", "M"] }\n'
    'include = [{ column = "age", min = 18, max = 89 }, { column = "ward", values = ["icu", "er"] '
    "}]",
).replace(
    'unit = "years" }',
    'unit = "years", normal = [20, 30], thresholds = { low = [19], high = [40, 50] } }',
)
HIDDEN = {"data", "test", "home", "charter", "trust", "consent", "lifetime"}
"""Of a site: where its rows and papers are, which only the site itself needs to know."""


def other(value: Any, kind: Any) -> Any:
    """Some other value of the same type; what the type allows where there is none yet."""
    if isinstance(value, bool):
        return not value
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if choice != value), f"not {value}")
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return (*value, {"rate": 7.5})
    if value is not None:
        raise TypeError(f"no other value for {value!r} of {kind}")
    return some(kind)


def some(kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        return some(get_args(kind)[0])
    if get_origin(kind) in (UnionType, Union):
        return some(next(part for part in get_args(kind) if part is not NoneType))
    if get_origin(kind) is tuple:
        return tuple(some(part) for part in get_args(kind) if part is not Ellipsis)
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_construct(
            **{name: some(field.annotation) for name, field in kind.model_fields.items()}
        )
    return {str: "x", int: 7, float: 7.5, bool: True, dict: {}}[get_origin(kind) or kind]


def changed(value: Any, kind: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every way to change one thing somewhere in a value: each leaf of each model, each item of
    each list, one more."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            for where, new in changed(getattr(value, name), field.annotation, (*path, name)):
                yield where, value.model_copy(update={name: new})
        for name, item in (value.model_extra or {}).items():
            yield (
                (*path, name),
                value.model_copy(update={name: 7.5 if item is None else other(item, type(item))}),
            )
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            for where, new in changed(item, type(item), (*path, str(i))):
                yield where, (*value[:i], new, *value[i + 1 :])
        inner = (
            [part for part in get_args(kind) if part is not Ellipsis]
            if get_origin(kind) is tuple
            else [str]
        )
        yield (*path, "one more"), (*value, some(inner[0]))
        if value:
            yield (*path, "one less"), value[:-1]
    elif isinstance(value, dict):
        for key, item in value.items():
            for where, new in changed(item, type(item), (*path, key)):
                yield where, {**value, key: new}
            yield (
                (*path, key, "called otherwise"),
                {k + "x" * (k == key): v for k, v in value.items()},
            )
            yield (*path, key, "gone"), {k: v for k, v in value.items() if k != key}
        if len(value) > 1:
            yield (*path, "another order"), dict(reversed(value.items()))
    else:
        yield path, other(value, kind)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("text", [RICH, IMAGES, COHORT])
def test_every_setting_is_in_the_digest(text):
    study = Study.from_text(text)
    seen = {study.digest: "as it is"}
    for path, new in changed(study, Study, ()):
        where = ".".join(path)
        hidden = path[0] == "federation" or (
            path[0] == "sites" and len(path) > 2 and path[2] in HIDDEN
        )
        assert (new.digest == study.digest) == hidden, where
        assert hidden or seen.setdefault(new.digest, where) == where, (where, seen[new.digest])
    assert len(seen) > 60


def test_the_digest_does_not_see_spelling():
    study = Study.from_text(RICH)
    again = RICH.replace("low = 18, high = 100", "high = 1e2, low = 18.0").replace(
        "epsilon = 8.0", "epsilon = 8 # yes"
    )
    again = again.replace("rounds = 3", "rounds = 3\nrate = 0.01 # the default, said").replace(
        '[{ column = "age", min = 18, max = 89 }, { column = "ward", values = ["icu", "er"] }]',
        '[{ values = ["er", "icu"], column = "ward" }, { column = "age", max = 89, min = 18 }]',
    )
    head, privacy = again.split("[privacy]")
    parts = [
        "[privacy]" + privacy,
        head.replace(
            'name = "cardio"\noutcome = "high_risk"', 'outcome = "high_risk"\nname = "cardio"'
        ),
    ]
    assert Study.from_text("\n".join(parts)).digest == study.digest
    assert Study.from_text(study.to_toml()).digest == study.digest
    assert study.public().digest == study.digest
    assert Study.from_text(study.public().to_toml()).digest == study.digest


def test_the_digest_is_sha256_and_pinned():
    """A digest that a board signed must not move under it: this one changes only when the study's
    meaning does."""
    digest = Study.from_text(COHORT).digest
    assert len(digest) == 64
    assert int(digest, 16) > 0
    infinite = Study.from_text(COHORT + '[privacy]\nunit = "patient"\nepsilon = inf\n')
    assert infinite.digest != infinite.replace(privacy={"epsilon": 1.0}).digest


def test_one_text_of_the_outcome_counts_as_one_and_the_rest_as_zero(tmp_path):
    text = """
[study]
name = "readmission"
outcome = "readmitted"
positive = "<30"
[[site]]
name = "a"
data = "a.csv"
[schema]
patient = "id"
[schema.features]
x = { kind = "number", low = 0, high = 1, worse = "high" }
"""
    study = Study.from_text(text)
    assert Study.from_text(study.to_toml()) == study
    assert study.replace(positive=">30").digest != study.digest
    (tmp_path / "a.csv").write_text("id,readmitted,x\n1,<30,0\n2,>30,0\n3,NO,1\n4,,1\n5, <30 ,1\n")
    loaded = load(
        str(tmp_path / "a.csv"), study.table, "readmitted", site="a", holdout=0.0, split_key="k",
        target=study.target,
    )  # fmt: skip
    assert sorted(loaded.train.y.tolist()) == [0, 0, 1, 1]  # the row without an outcome is left out
    with pytest.raises(StudyError, match=r"without study\.classes"):
        study.replace(classes=["<30", ">30"])


def test_what_a_draft_leaves_to_a_person_is_named_as_the_file_names_it():
    features = {"TIME": {"kind": "number"}, "number": {"kind": "number", "low": 0}}
    with pytest.raises(StudyError) as caught:
        Study.from_text(
            '[study]\nname = "s"\noutcome = "y"\n[[site]]\nname = "a"\n[schema]\n[schema.features]\n'
            + "".join(
                f"{name} = {{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in one.items())} }}\n"
                for name, one in features.items()
            )
        )
    text = str(caught.value)
    assert "schema.features.TIME.low: is missing; schema.features.TIME.high: is missing" in text
    assert "schema.features.number.high: is missing" in text
