"""A table with identifiers of all eighteen Safe Harbor categories planted in it, to measure
de-identification with.

Each category is under an honest column name and under misleading ones (social security numbers as
``lab_value_2``), beside harmless columns, some of which look like identifiers
(``phone_consult``, five-digit procedure codes, drugs with two capitalised words). Half of the
people have names that are on no list of common names. Everybody is invented.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rng = np.random.Generator
_FIRST_TEXT = "James Mary Robert Linda Wei Aoife Tamsin Bogdan Ximena Ngozi Ioana Torvald Leilani Kwame Siobhan Yevgenia"
_LAST_TEXT = "Smith Garcia Nguyen Brown Okonkwo Papadopoulos Szczepanski Thistlewood Adeyemi Kowalczyk Varga Birk Quispe"
_FIRST, _LAST = _FIRST_TEXT.split(), _LAST_TEXT.split()
_STREETS = ("Oak", "Maple", "Church", "Old Mill", "Harbour View", "Lincoln", "Third")
_KINDS = ("Street", "Ave", "Road", "Blvd", "Lane", "Drive")
_TOWNS_TEXT = "Boston Cambridge Worcester Lowell Pepperell Ashburnham Salem Quincy Nahant Lynn"
_TOWNS = _TOWNS_TEXT.split()
_PAIRS = ("Metformin Hydrochloride", "Warfarin Sodium", "Insulin Glargine")
_DRUGS = (*_PAIRS, "Aspirin", "Lisinopril", "Atorvastatin Calcium")
_PROSE = (
    "seen in clinic, doing well on current treatment",
    "complains of chest pain on exertion since last week",
    "wound clean and dry, sutures removed without difficulty",
    "advised to return if symptoms get worse",
)
_ALPHABET = np.array(list("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"))
_BASE64 = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))


def _digits(rng: Rng, count: int) -> str:
    return "".join(map(str, rng.integers(0, 10, count)))


def _mixed(rng: Rng, count: int, alphabet: NDArray[np.str_] = _ALPHABET) -> str:
    return "".join(rng.choice(alphabet, count))


def _person(rng: Rng) -> str:
    first = rng.choice(_FIRST)
    middle = "" if rng.random() < 0.5 else f" {rng.choice(list('ABCDEF'))}."
    return f"{first}{middle} {_family(rng)}"


def _family(rng: Rng) -> str:
    return str(rng.choice(_LAST)) + ("" if rng.random() < 0.7 else "-" + str(rng.choice(_LAST)))


def _day(rng: Rng) -> str:
    return str(np.datetime64("1925-01-01") + rng.integers(0, 36_000))


def _phone(rng: Rng) -> str:
    area, middle, last = rng.integers(201, 989), rng.integers(200, 999), rng.integers(0, 10_000)
    form = ("({}) {}-{:04d}", "{}-{}-{:04d}", "+1 {} {} {:04d}")[rng.integers(3)]
    return form.format(area, middle, last)


def _vin(rng: Rng) -> str:
    values = dict(zip("ABCDEFGHJKLMNPRSTUVWXYZ0123456789", [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 7, 9, 2, 3, 4, 5, 6, 7,
                      8, 9, *range(10)], strict=True))  # fmt: skip
    weights = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
    text = _mixed(rng, 17, np.array(list(values)))
    rest = sum(w * values[c] for w, c in zip(weights, text, strict=True)) % 11
    return text[:8] + ("X" if rest == 10 else str(rest)) + text[9:]


def _address(rng: Rng) -> str:
    return f"{rng.integers(1, 2000)} {rng.choice(_STREETS)} {rng.choice(_KINDS)}"


def _ssn(rng: Rng) -> str:
    return f"{rng.integers(1, 665):03d}-{rng.integers(1, 99):02d}-{rng.integers(1, 9999):04d}"


def _us_day(rng: Rng) -> str:
    year, month, day = _day(rng).split("-")
    return f"{month}/{day}/{year}"


def _note(rng: Rng) -> str:
    text = str(rng.choice(_PROSE))
    if rng.random() < 0.1:
        text += f", call {_phone(rng)}"
    return f"{text}; {rng.choice(_PROSE)}"


Maker = Callable[[Rng], str]


def _any(*values: str) -> Maker:
    return lambda rng: str(rng.choice(values))


def _whole(low: int, high: int) -> Maker:
    return lambda rng: str(rng.integers(low, high))


PLANTED: dict[str, tuple[str, Maker]] = {
    # column: (category, one value)
    "patient_name": ("name", _person),
    "LastName": ("name", _family),
    "region_2": ("name", _person),
    "home_address": ("geography", _address),
    "zip_code": ("geography", lambda rng: f"{rng.integers(1001, 2800):05d}"),
    "city": ("geography", _any(*_TOWNS)),
    "tier": (
        "geography",
        lambda rng: f"{rng.integers(1001, 2800):05d}-{rng.integers(0, 9999):04d}",
    ),
    "comment_b": ("geography", _address),
    "group_x": ("geography", _any(*_TOWNS)),
    "date_of_birth": ("date", _day),
    "admission_date": ("date", _us_day),
    "age": ("date", _whole(0, 104)),
    "severity": ("date", _us_day),
    "stage_code": ("date", lambda rng: _day(rng).replace("-", "")),
    "phone": ("phone", _phone),
    "dose_mg": ("phone", _phone),
    "fax_number": ("fax", _phone),
    "reading_4": ("fax", lambda rng: f"Fax: {_phone(rng)}"),
    "email": ("email", lambda rng: f"{_mixed(rng, 7).lower()}@example.org"),
    "unit_label": ("email", lambda rng: f"{_mixed(rng, 7).lower()}@mail.example.com"),
    "SSN": ("ssn", _ssn),
    "lab_value_2": ("ssn", _ssn),
    "mrn": ("record_number", lambda rng: _digits(rng, 8)),
    "blood_type": ("record_number", lambda rng: f"MRN-{_digits(rng, 7)}"),
    "member_id": ("health_plan", lambda rng: _mixed(rng, 11)),
    "bmi_class": ("health_plan", lambda rng: f"{_mixed(rng, 3)}{_digits(rng, 9)}"),
    "account_number": ("account", lambda rng: _digits(rng, 10)),
    "wave": ("account", lambda rng: f"ACCT-{_digits(rng, 8)}"),
    "license_no": ("licence", lambda rng: f"{_mixed(rng, 1)}{_digits(rng, 7)}"),
    "status_2": ("licence", lambda rng: f"LIC {_mixed(rng, 2)}{_digits(rng, 6)}"),
    "vin": ("vehicle", _vin),
    "arm_3": ("vehicle", _vin),
    "cohort_tag": (
        "vehicle",
        lambda rng: f"{_mixed(rng, 3, np.array(list('BCDFGHJKLM')))}-{_digits(rng, 4)}",
    ),
    "device_serial": ("device", lambda rng: _mixed(rng, 12)),
    "panel": ("device", lambda rng: ":".join(f"{v:02x}" for v in rng.integers(0, 256, 6))),
    "website": ("url", lambda rng: f"https://example.org/p/{_mixed(rng, 6)}"),
    "protocol": ("url", lambda rng: f"http://portal.example.com/{_digits(rng, 6)}"),
    "ip_address": ("ip", lambda rng: ".".join(map(str, rng.integers(1, 255, 4)))),
    "visit_type": (
        "ip",
        lambda rng: "2001:db8::" + ":".join(f"{v:x}" for v in rng.integers(1, 65_535, 3)),
    ),
    "fingerprint_template": ("biometric", lambda rng: _mixed(rng, 64, _BASE64)),
    "signal": ("biometric", lambda rng: "Rk1S" + _mixed(rng, 60, _BASE64)),
    "photo": ("photo", lambda rng: f"faces/{_digits(rng, 6)}.jpg"),
    "attachment": ("photo", lambda rng: "/9j/4AAQSkZJRgABAQ" + _mixed(rng, 60, _BASE64)),
    "sample_barcode": ("other", lambda rng: _digits(rng, 12)),
    "bin": ("other", lambda rng: f"{_mixed(rng, 4)}-{_digits(rng, 5)}"),
    "clinical_notes": ("text", _note),
    "extra": ("text", _note),
}
HARMLESS: dict[str, Maker] = {
    "sex": _any("F", "M"),
    "state": _any("MA", "NH", "CT", "RI"),
    "race": _any("Asian", "Black", "White", "Other"),
    "heart_rate": _whole(45, 160),
    "systolic_bp": _whole(85, 210),
    "creatinine": lambda rng: f"{rng.gamma(4, 0.3):.2f}",
    "platelets": lambda rng: str(rng.integers(80, 500) * 1000),
    "weight_kg": lambda rng: f"{rng.normal(78, 15):.1f}",
    "icd10": lambda rng: (
        f"{rng.choice(list('ABEIJKN'))}{rng.integers(10, 99)}.{rng.integers(0, 9)}"
    ),
    "cpt_code": _whole(99_201, 99_499),
    "drug_name": _any(*_DRUGS),
    "medication": _any(*_DRUGS),
    "diagnosis": _any("Heart Failure", "Type 2 Diabetes", "Atrial Fibrillation", "Sepsis"),
    "phone_consult": _whole(0, 2),
    "email_opt_in": _any("yes", "no"),
    "address_changed": _whole(0, 2),
    "device_count": _whole(0, 5),
    "device": _any("CPAP", "none", "pump"),
    "age_group": _any("18-39", "40-64", "65-89", "90+"),
    "los_days": _whole(1, 60),
    "days_since_admission": _whole(0, 400),
    "visit_year": _whole(2015, 2026),
    "insurance_type": _any("Medicare", "Medicaid", "Private", "None"),
    "account_balance": lambda rng: f"{rng.gamma(2, 300):.2f}",
    "smoker": _any("true", "false"),
    "nyha_class": _any("I", "II", "III", "IV"),
    "steps_per_day": lambda rng: str(int(rng.gamma(5, 1500))),
    "hospital_name": _any("General", "Mercy", "University"),
    "risk_score": lambda rng: f"{rng.random():.4f}",
    "died": _whole(0, 2),
}
_HONEST_TEXT = """
patient_name LastName home_address zip_code city date_of_birth admission_date age phone fax_number email SSN mrn member_id
account_number license_no vin device_serial website ip_address fingerprint_template photo sample_barcode clinical_notes
"""
HONEST = frozenset(_HONEST_TEXT.split())


def planted(rows: int, seed: int) -> dict[str, list[str]]:
    """The table, column by column, in an order that gives nothing away."""
    rng = np.random.default_rng(seed)
    makers = {**{name: maker for name, (_, maker) in PLANTED.items()}, **HARMLESS}
    order = rng.permutation(list(makers)).tolist()
    return {name: [makers[name](rng) for _ in range(rows)] for name in order}
