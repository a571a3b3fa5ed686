"""The public clinical dictionary: well formed, and it recognises what it should and nothing else."""

import math

import pytest

from suture.schema.clinical import (
    by_loinc,
    convert,
    dictionary,
    plain,
    read_name,
    recognise,
    unit_codes,
)

MEASURES = dictionary().values()


def luhn(code):
    number, check = code.split("-")
    total = 0
    for i, digit in enumerate(reversed(number)):
        value = int(digit) * (1 + (i % 2 == 0))
        total += value // 10 + value % 10
    return (10 - total % 10) % 10 == int(check)


def test_about_150_measures_or_more_each_with_a_source():
    assert len(dictionary()) >= 150
    assert all(one.sources for one in MEASURES)


def test_no_spelling_stands_for_two_measures():
    for kind in ("names", "with_unit"):
        seen = {}
        for one in MEASURES:
            for text in getattr(one, kind):
                assert seen.setdefault(plain(text), one.name) == one.name, text


@pytest.mark.parametrize("one", MEASURES, ids=lambda one: one.name)
def test_each_measure_is_a_valid_feature_with_known_units_and_checked_codes(one):
    number = one.number()  # bounds, normal range and thresholds in order, or pydantic refuses
    assert number.low < number.high
    assert all(unit_codes(unit) == (unit,) for unit in (one.unit, *one.units))
    assert all(luhn(code) for code in one.loinc), one.loinc
    assert one.molar is None or one.molar > 0


def test_codes_of_fhir_and_omop_are_found():
    assert by_loinc("8480-6").name == "systolic"
    assert by_loinc("2339-0").name == "glucose"
    assert by_loinc("2708-6") is None  # pulse oximetry in one profile, arterial in another
    assert by_loinc("0-0") is None


# Columns of the tables in shared/data, as published: what each is, or None.
REAL = {
    "framingham": {
        "TOTCHOL": "cholesterol", "AGE": "age", "SYSBP": "systolic", "DIABP": "diastolic",
        "CIGPDAY": "cigarettes", "BMI": "bmi", "HEARTRTE": "heart_rate", "GLUCOSE": "glucose",
        "HDLC": "hdl", "LDLC": "ldl", **dict.fromkeys((
            "RANDID", "SEX", "CURSMOKE", "DIABETES", "BPMEDS", "educ", "PREVCHD", "PREVAP", "PREVMI",
            "PREVSTRK", "PREVHYP", "TIME", "PERIOD", "DEATH", "ANGINA", "HOSPMI", "MI_FCHD", "ANYCHD",
            "STROKE", "CVD", "HYPERTEN", "TIMEAP", "TIMEMI", "TIMECVD", "TIMEDTH", "TIMEHYP")),
    },
    "uci heart": {
        "age": "age", "trestbps": "systolic", "chol": "cholesterol", "thalach": "peak_heart_rate",
        "oldpeak": "st_depression",
        **dict.fromkeys(("sex", "cp", "fbs", "restecg", "exang", "slope", "ca", "thal", "target")),
    },
    "eicu": {
        "urine": "urine_output", "wbc": "wbc", "temperature": "temperature", "meanbp": "mean_pressure",
        "respiratoryrate": "respiratory_rate", "sodium": "sodium", "heartrate": "heart_rate",
        "ph": "ph", "hematocrit": "hematocrit", "creatinine": "creatinine", "albumin": "albumin",
        "pao2": "pao2", "pco2": "paco2", "bun": "bun", "glucose": "glucose", "fio2": "fio2",
        "bilirubin": "bilirubin", "admissionheight": "height", "admissionweight": "weight",
        "day1pao2": "pao2", "ejectfx": "ejection_fraction", "noninvasivesystolic": "systolic",
        "paop": "wedge_pressure", **dict.fromkeys((
            "patientunitstayid", "uniquepid", "hospitalid", "wardid", "gender", "ethnicity", "vent",
            "eyes", "motor", "verbal", "meds", "unitvisitnumber", "aids", "cirrhosis", "diabetes",
            "predictedhospitalmortality", "saps3day1", "bedcount", "visitnumber", "svri", "pvri",
            "cardiacinput", "unitdischargeoffset", "graftcount", "midur", "ima", "readmit")),
    },
    "physionet 2012": {
        "ALP": "alp", "ALT": "alt", "AST": "ast", "Age": "age", "Albumin": "albumin", "BUN": "bun",
        "Bilirubin": "bilirubin", "Cholesterol": "cholesterol", "Creatinine": "creatinine",
        "DiasABP": "diastolic", "FiO2": "fio2", "GCS": "gcs", "Glucose": "glucose",
        "HCO3": "bicarbonate", "HCT": "hematocrit", "HR": "heart_rate", "Height": "height",
        "K": "potassium", "Lactate": "lactate", "MAP": "mean_pressure", "Mg": "magnesium",
        "NIDiasABP": "diastolic", "NIMAP": "mean_pressure", "NISysABP": "systolic", "Na": "sodium",
        "PaCO2": "paco2", "PaO2": "pao2", "Platelets": "platelets", "RespRate": "respiratory_rate",
        "SaO2": "sao2", "SysABP": "systolic", "Temp": "temperature", "TroponinI": "troponin_i",
        "TroponinT": "troponin_t", "Urine": "urine_output", "WBC": "wbc", "Weight": "weight",
        "pH": "ph", "SAPS-I": "saps1", "SOFA": "sofa", **dict.fromkeys((
            "Gender", "ICUType", "MechVent", "RecordID", "Length_of_stay", "Survival", "set",
            "In-hospital_death")),
    },
}  # fmt: skip


@pytest.mark.parametrize("table", REAL)
def test_real_tables_every_recognition_is_right_and_every_measure_found(table):
    found = {column: getattr(recognise(column), "name", None) for column in REAL[table]}
    assert found == REAL[table]


@pytest.mark.parametrize(
    ("column", "measure", "statistic", "unit"),
    [
        ("chol_mg_dl", "cholesterol", "", "mg/dL"), ("Cholesterin [mmol/l]", "cholesterol", "", "mmol/L"),
        ("HR_max", "heart_rate", "max", ""), ("hr_min", "heart_rate", "min", ""),
        ("min_sbp", "systolic", "min", ""), ("HRMax", "heart_rate", "max", ""),
        ("creat_max_umol_l", "creatinine", "max", "umol/L"), ("Kreatinin (µmol/l)", "creatinine", "", "umol/L"),
        ("Temp F", "temperature", "", "[degF]"), ("Temp (°C)", "temperature", "", "Cel"),
        ("Hct_%", "hematocrit", "", "%"), ("Größe", "height", "", ""), ("Poids (kg)", "weight", "", "kg"),
        ("K_mean", "potassium", "mean", ""), ("na_mmol_l", "sodium", "", "mmol/L"),
        ("Platelets (10^9/L)", "platelets", "", "10*3/uL"), ("Hb g/L", "hemoglobin", "", "g/L"),
        ("d1_heartrate_max", "heart_rate", "max", ""), ("pt_sec", "pt", "", "s"),
        ("Tensión sistólica", None, "", ""), ("lactate_last", "lactate", "last", ""),
    ],
)  # fmt: skip
def test_names_are_taken_apart(column, measure, statistic, unit):
    found = read_name(column)
    if measure is None:
        assert found is None
    else:
        assert (found.measure.name, found.statistic, found.unit) == (measure, statistic, unit)


@pytest.mark.parametrize(
    "column",
    ["ca", "na", "NA", "k", "map", "map_id", "fbs", "pt", "asa", "mrs", "insulin", "csf_glucose",
     "albumin_urine", "weight_class", "age_group", "heart_rate_alarm", "chol_mmhg", "glucose_kg",
     "temperature_device", "icu", "los", "id", "", "x" * 100_000, "hr" * 60, "cholesterol_high",
     "delta", "max", "mg", "mmHg", "%", "\x00", "Temp (device)"],
)  # fmt: skip
def test_what_is_doubtful_is_not_recognised(column):
    assert recognise(column) is None


def test_a_unit_beside_the_name_must_fit():
    assert recognise("glucose", "mmol/L").name == "glucose"
    assert recognise("glucose", "mmHg") is None
    assert recognise("glucose", "bananas") is None
    assert recognise("glucose_mg_dl", "mmol/L") is None
    assert read_name("hemoglobin", "G/L") is None  # giga per litre is a count, not a mass
    assert read_name("hemoglobin", "g/L").unit == "g/L"
    assert read_name("wbc", "G/L").unit == "10*3/uL"


def test_linear_conversions_are_the_published_ones():
    ((unit, factor, offset),) = dictionary()["hba1c"].linear
    assert unit == "mmol/mol"
    assert math.isclose(
        factor * 48 + offset, 6.5, abs_tol=0.05
    )  # the ADA's two cut-offs for diabetes


@pytest.mark.parametrize(
    ("unit", "target", "measure", "factor", "offset"),
    [
        # by hand, or the tables of the AMA Manual of Style (SI conversion factors)
        ("mmol/L", "mg/dL", "cholesterol", 38.665, 0), ("mg/dL", "mmol/L", "glucose", 1 / 18.0156, 0),
        ("µmol/L", "mg/dL", "creatinine", 1 / 88.4, 0), ("umol/l", "mg/dL", "bilirubin", 1 / 17.104, 0),
        ("mmol/L", "mg/dL", "bun", 2.8014, 0), ("mEq/L", "mg/dL", "calcium", 2.0039, 0),
        ("mEq/L", "mmol/L", "potassium", 1, 0), ("g/L", "g/dL", "hemoglobin", 0.1, 0),
        ("mmol/L", "g/dL", "hemoglobin", 1.61145, 0), ("°F", "°C", "temperature", 5 / 9, -160 / 9),
        ("kPa", "mmHg", "paco2", 7.50062, 0), ("mmol/mol", "%", "hba1c", 0.09148, 2.152),
        ("µkat/L", "U/L", "alt", 60, 0), ("G/L", "10^3/uL", "wbc", 1, 0), ("/uL", "10*9/L", "platelets", 1e-3, 0),
        ("lbs", "kg", "weight", 0.45359237, 0), ("inches", "cm", "height", 2.54, 0), ("fraction", "%", "fio2", 100, 0),
        ("ng/L", "ng/mL", "troponin_i", 1e-3, 0), ("nmol/L", "ng/mL", "vitamin_d", 0.40064, 0),
        ("months", "years", "age", 1 / 12, 0), ("mg/mmol", "mg/g", "albumin_creatinine", 8.84, 0),
    ],
)  # fmt: skip
def test_units_are_converted(unit, target, measure, factor, offset):
    found = convert(unit, target, dictionary()[measure])
    assert found == pytest.approx((factor, offset), rel=2e-4)


@pytest.mark.parametrize(
    ("unit", "target", "measure"),
    [("mmHg", "mg/dL", "glucose"), ("mmol/L", "mg/dL", "crp"), ("bananas", "mg/dL", "glucose"),
     ("mEq/L", "mmol/L", "glucose"), ("pmol/L", "mg/dL", None), ("", "mg/dL", None), ("](", "kg", None),
     ("m" * 500, "kg", None)],
)  # fmt: skip
def test_what_cannot_be_converted_is_not(unit, target, measure):
    assert convert(unit, target, measure and dictionary()[measure]) is None


@pytest.mark.parametrize("one", MEASURES, ids=lambda one: one.name)
def test_every_unit_of_every_measure_converts_to_its_own(one):
    for unit in one.units:
        assert convert(unit, one.unit, one) is not None, unit
