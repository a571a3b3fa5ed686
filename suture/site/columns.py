"""What a column's name says about its content: hints for the eighteen categories, and what takes a hint back.

``phone_consult`` is a yes or no, ``device_count`` a number, ``drug_name`` no person: a hint alone never decides.
"""

from __future__ import annotations

import re

HINTS: tuple[tuple[str, str], ...] = (
    # the first that matches wins; words are those of the name, split at case, digits and punctuation
    ("fax", r"(tele)?fax( no| nr| number)?|facsimile"),
    ("email", r"e ?mail|mail address"),
    ("ssn", r"ssn|social security( no| number| nr| num)?|soc sec|sin number"),
    (
        "health_plan",
        r"(health )?plan (id|no|number|beneficiary)|beneficiary( id| no| number)?|member (id|no|number)"
        r"|subscriber( id| no| number)?|policy( id| no| number)?|insurance (id|no|number)"
        r"|medicare( id| no| number)?|mbi|hicn|medicaid (id|no|number)",
    ),
    (
        "record_number",
        r"mrn|medical record( id| no| number)?|record (id|no|number)|chart (id|no|number)"
        r"|patient (id|no|number|key|code)|pat id|pid|subject (id|no|number)|hospital (no|number)"
        r"|nhs( no| number)?|encounter (id|no|number)|visit (id|no|number)|csn|case (id|no|number)"
        r"|person id",
    ),
    (
        "account",
        r"acc(oun)?t( id| no| num| number)?|iban|credit card( no| number)?|card (no|number)"
        r"|bank( account)?|billing (id|no|number)|invoice (id|no|number)",
    ),
    (
        "licence",
        r"licen[cs]e( id| no| number)?|certificate( id| no| number)?|cert (id|no|number)|npi"
        r"|dea( no| number)?|passport( no| number)?|driver.?s? licen[cs]e.*",
    ),
    (
        "vehicle",
        r"vin|vehicle( id| identification.*| no| number)?|plate( no| number)?|licen[cs]e plate"
        r"|registration plate|number plate",
    ),
    (
        "device",
        r"device( id| identifier| no| number| serial)?|serial( no| number)?|imei|mac( address)?|udi"
        r"|implant( id| no| serial| number)?|pacemaker (id|no|serial)",
    ),
    ("url", r"url|uri|web ?site|web page|homepage|link|web address"),
    ("ip", r"ip|ip ?addr(ess)?|ipv4|ipv6|host( name)?|client ip|remote addr"),
    (
        "biometric",
        r"biometric.*|finger ?print.*|iris.*|retina( scan| template)|voice ?print|face ?print|minutiae"
        r"|.*template hash",
    ),
    ("photo", r"photo.*|portrait|face image|picture|image( file| path| url)?|avatar|mug ?shot|snapshot|selfie"),
    (
        "phone",
        r"(tele)?phone( no| number)?|tel|mobile( no| number)?|cell( phone)?( no| number)?"
        r"|contact (no|number)|(home|work|day|emergency) (tele)?phone",
    ),
    (
        "date",
        r".*\b(date|datetime|timestamp|dob|dod|birthday)"
        r"|.*\b(admitted|discharged|admission|discharge|visit|death|birth) (day|dt|time|on)"
        r"|(admitted|discharged|died|born)( on| at)?|dt|.* dt|year of birth|birth year|yob|admission"
        r"|discharge|.*\bat time",
    ),
    ("age", r"age|.* age|age (years|yrs|at .*|in years)|years old"),
    ("zip", r"zip( ?code)?.*|post(al)? ?code|plz|postcode"),
    (
        "geography",
        r"(street|home|mailing|postal|residential|patient)?( ?address)(line)?( line)?|addr(ess)?( line)?"
        r"|street.*|city|town|county|village|precinct|parish|neighbou?rhood|municipality|lat(itude)?"
        r"|lon(gitude)?|lng|geo ?code|gps|coordinates?|census tract|census block|tract|ward of residence"
        r"|birth ?place|residence",
    ),
    (
        "name",
        r"name"
        r"|(first|last|middle|full|given|family|maiden|patient|sur|nick|mother.?s?|father.?s?|contact"
        r"|guardian|next of kin|physician|doctor|provider|nurse|attending|clinician|relative|employer"
        r"|household member) ?(first |last |full |maiden )?name"
        r"|surname|forename|fname|lname|initials|patient|physician|doctor|attending|mother|father"
        r"|next of kin|guardian|signature",
    ),
    (
        "text",
        r"(clinical |doctor |nursing |progress |free |discharge )?(notes?|comments?|remarks?|narrative"
        r"|free text|summary|text|description|history|memo|report)( text)?",
    ),
    (
        "other",
        r".*\b(uuid|guid|token|hash)"
        r"|(study|sample|specimen|barcode|tracking|reference|ref|unique|employee|user|login|customer|client"
        r"|family|national|tax|device order) ?(id|no|number|code|name)?"
        r"|barcode|id|identifier|.* (id|identifier)|key|username|user|badge.*|kit (no|number)",
    ),
)

NOT_A_PERSON = re.compile(
    r"\b(drug|medication|medicine|test|lab|procedure|product|brand|generic|hospital|ward|department|unit|clinic|study|file|column"
    r"|field|variable|diagnosis|disease|gene|species|vaccine|organism|antibiotic|panel|assay|allergen)\b"
)
COUNTED = re.compile(
    r"\b(count|n|num of|number of|total|rate|score|index|level|type|kind|class|status|flag|verified|changed|opt in|opt out|"
    r"consult|reminder|present|missing|available|duration|days|weeks|months|hours|minutes|los|length|interval|since|until|group|band|bucket|"
    r"range|model|method|used|usage|sent|visits|attempts|reason|category|contacted|preferred|share|percent|pct|delta|diff)\b"
)


def words_of(column: str) -> str:
    """A column's name as lower-case words.

    >>> words_of("PatientLastName"), words_of("zip_code5"), words_of("home.Phone#")
    ('patient last name', 'zip code', 'home phone')
    """
    text = re.sub(r"([a-zà-ÿ])([A-Z])", r"\1 \2", column)
    text = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1 \2", text)
    return re.sub(r"[^A-Za-zÀ-ÿ']+", " ", text).strip().lower()


def hint_of(column: str) -> str | None:
    """The category a column's name hints at (also ``age``, ``zip`` and ``text``), or None.

    >>> [hint_of(name) for name in ("last_name", "drug_name", "DOB", "zip", "phone_consult_count", "heart_rate")]
    ['name', None, 'date', 'zip', None, None]
    """
    words = words_of(column)
    for category, pattern in HINTS:
        if re.fullmatch(pattern, words):
            if category == "name" and NOT_A_PERSON.search(words):
                return None
            if COUNTED.search(words) and category not in ("text", "age", "record_number"):
                return None
            return category
    return None
