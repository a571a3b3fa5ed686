"""What the eighteen Safe Harbor identifiers look like in a column's values.

Every column is profiled over all of its rows (`Values`), and a sample of its distinct values is
tried against every sign. `judge` weighs both against what the column's name hints at. A hint alone
never decides: ``phone_consult`` is a yes or no, ``device_count`` a number, ``drug_name`` no person.
Values never leave: a `Finding` holds the column, the category, shares and counts, and what to do.

The list is that of 45 CFR 164.514(b)(2)(i), (A) to (R). A pattern here is a *sign*, not a proof:
names have no shape, and a number is an identifier because of what it stands for. Signs that carry a check digit or a fixed mark
(e-mail, URL, IP address, VIN, IBAN) count alone; those that any number could show (five digits: a
ZIP code?) count only when nearly every value shows them.

Names and cities are the top of public lists of the United States (Census surnames, Social Security
first names, cities by population). A name that is not here is still found by its column's name or
by its shape; docs/deidentification.md says what is missed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any, TypeAlias

from suture.errors import DataError

Report: TypeAlias = dict[str, Any]  # plain JSON without a patient's value

_FIRST = """
    james robert john michael david william richard joseph thomas christopher charles daniel matthew anthony mark donald
    steven andrew paul joshua kenneth kevin brian timothy ronald george jason edward jeffrey ryan jacob nicholas gary eric
    jonathan stephen larry justin scott brandon benjamin samuel gregory alexander patrick frank raymond jack dennis jerry
    tyler aaron jose adam nathan henry zachary douglas peter kyle noah ethan jeremy christian walter keith austin roger
    terry sean gerald carl dylan harold jordan jesse bryan lawrence arthur gabriel bruce logan billy joe alan juan elijah
    willie albert wayne randy mason vincent liam roy bobby caleb bradley russell lucas mary patricia jennifer linda
    elizabeth barbara susan jessica karen sarah lisa nancy sandra betty ashley emily kimberly margaret donna michelle
    carol amanda melissa deborah stephanie rebecca sharon laura cynthia dorothy amy kathleen angela shirley emma brenda
    pamela nicole anna samantha katherine christine debra rachel carolyn janet maria olivia heather helen catherine diane
    julie victoria joyce lauren kelly christina ruth joan virginia judith evelyn hannah andrea megan cheryl jacqueline
    madison teresa abigail sophia martha sara gloria janice kathryn ann isabella judy charlotte julia grace amber alice
    jean denise frances danielle marilyn natalie beverly diana brittany theresa kayla alexis doris lori tiffany luis carlos
    miguel pedro ana carmen rosa fatima mohammed muhammad ahmed ali omar hassan wei ming li yuki hiroshi priya raj anil
    sanjay ivan olga dmitri elena sofia giulia marco luca pierre claire hans klaus ingrid lars anders
"""

_LAST = """
    smith johnson williams brown jones garcia miller davis rodriguez martinez hernandez lopez gonzalez wilson anderson
    thomas taylor moore jackson martin lee perez thompson white harris sanchez clark ramirez lewis robinson walker young
    allen king wright scott torres nguyen hill flores green adams nelson baker hall rivera campbell mitchell carter
    roberts gomez phillips evans turner diaz parker cruz edwards collins reyes stewart morris morales murphy cook rogers
    gutierrez ortiz morgan cooper peterson bailey reed kelly howard ramos kim cox ward richardson watson brooks chavez wood
    james bennett gray mendoza ruiz hughes price alvarez castillo sanders patel myers long ross foster jimenez powell
    jenkins perry russell sullivan bell coleman butler henderson barnes fisher vasquez simmons romero jordan patterson
    alexander hamilton graham reynolds griffin wallace moreno west cole hayes bryant herrera gibson ellis tran medina
    aguilar stevens murray ford castro marshall owens harrison fernandez mcdonald woods washington kennedy wells vargas
    henry chen freeman webb tucker guzman burns crawford olson simpson porter hunter gordon mendez silva shaw snyder mason
    dixon munoz hunt hicks holmes palmer wagner black robertson boyd rose stone salazar fox warren mills meyer rice
    schmidt garza daniels ferguson nichols stephens soto weaver ryan gardner payne grant dunn kelley spencer hawkins wang
    singh khan kumar ivanov muller schneider rossi jensen hansen larsen o'brien murphy
"""

FIRST_NAMES, LAST_NAMES = frozenset(_FIRST.split()), frozenset(_LAST.split())

CITIES = frozenset(
    name.strip()
    for name in """
    new york,los angeles,chicago,houston,phoenix,philadelphia,san antonio,san diego,dallas,jacksonville,austin,fort worth,
    san jose,columbus,charlotte,indianapolis,san francisco,seattle,denver,oklahoma city,nashville,el paso,washington,
    las vegas,boston,detroit,portland,louisville,memphis,baltimore,milwaukee,albuquerque,tucson,fresno,sacramento,
    kansas city,mesa,atlanta,colorado springs,omaha,raleigh,virginia beach,long beach,miami,oakland,minneapolis,bakersfield,
    tulsa,tampa,arlington,wichita,aurora,new orleans,cleveland,honolulu,anaheim,henderson,orlando,lexington,stockton,
    riverside,corpus christi,irvine,cincinnati,santa ana,newark,st. paul,saint paul,pittsburgh,greensboro,durham,lincoln,
    jersey city,plano,anchorage,st. louis,saint louis,madison,chandler,gilbert,reno,buffalo,cambridge,somerville,worcester,
    springfield,lowell,brockton,quincy,lynn,salem,providence,hartford,new haven,stamford,bridgeport,manchester,nashua,
    burlington,albany,rochester,syracuse,yonkers,boise,spokane,tacoma,salt lake city,des moines,little rock,jackson,
    birmingham,montgomery,mobile,knoxville,chattanooga,richmond,norfolk,london,paris,berlin,madrid,rome,toronto,montreal
    """.replace("\n", "").split(",")
)


CATEGORIES = {
    "name": "(A) names",
    "geography": "(B) places smaller than a state",
    "date": "(C) dates, and ages over 89",
    "phone": "(D) telephone numbers",
    "fax": "(E) fax numbers",
    "email": "(F) e-mail addresses",
    "ssn": "(G) social security numbers",
    "record_number": "(H) medical record numbers",
    "health_plan": "(I) health plan numbers",
    "account": "(J) account numbers",
    "licence": "(K) certificate and licence numbers",
    "vehicle": "(L) vehicle identifiers and plates",
    "device": "(M) device identifiers and serial numbers",
    "url": "(N) web addresses",
    "ip": "(O) IP addresses",
    "biometric": "(P) biometric identifiers",
    "photo": "(Q) full-face photographs",
    "other": "(R) any other unique number or code",
}

_ZIP3 = (
    "036 059 063 102 202 203 204 205 369 556 692 753 772 790 821 823 830 831 878 879 884 890 893"
)
RESTRICTED_ZIP3 = frozenset(_ZIP3.split())
"""Three-digit areas of 20,000 people or fewer, by Census 2000 (the 17 of the guidance of 2012) or
2010. The rule binds to the current census: pass newer ones to `apply`."""


Check = Callable[[str], bool]


@dataclass(frozen=True)
class Sign:
    """One shape of values: a pattern for the whole value, and an optional check of its content."""

    name: str
    category: str
    pattern: re.Pattern[str]
    check: Check | None = None
    strong: bool = True
    """Counts alone; a weak sign needs nearly every value to show it."""

    def fits(self, text: str) -> bool:
        """Whether a whole value shows the sign."""
        return self.pattern.fullmatch(text) is not None and (self.check is None or self.check(text))


def luhn(text: str) -> bool:
    """The check digit of cards, IMEIs and NPIs."""
    digits = _digits(text)[::-1]
    doubled = sum(sum(divmod(2 * d, 10)) for d in digits[1::2])
    return (sum(digits[0::2]) + doubled) % 10 == 0 and any(digits)


def _digits(text: str) -> list[int]:
    return [int(c) for c in re.sub(r"\D", "", text)]


def vin(text: str) -> bool:
    """A vehicle identification number's check digit (49 CFR 565.15)."""
    values = dict(zip("ABCDEFGHJKLMNPRSTUVWXYZ0123456789", [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 7, 9, 2, 3, 4, 5, 6, 7,
                      8, 9, *range(10)], strict=True))  # fmt: skip
    weights = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
    text = text.upper()
    if len(text) != 17 or any(c not in values for c in text):
        return False
    rest = sum(weight * values[c] for weight, c in zip(weights, text, strict=True)) % 11
    return text[8] == ("X" if rest == 10 else str(rest))


def iban(text: str) -> bool:
    """An international bank account number's check (ISO 13616)."""
    text = text.replace(" ", "").upper()
    return int("".join(str(int(c, 36)) for c in text[4:] + text[:4])) % 97 == 1


def ip_address(text: str) -> bool:
    """A version 4 or 6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def nhs_number(text: str) -> bool:
    """The check digit of a number of the National Health Service (modulus 11)."""
    digits = _digits(text)
    if len(digits) != 10:
        return False
    return -sum(d * w for d, w in zip(digits, range(10, 1, -1), strict=False)) % 11 == digits[9]


_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec)[a-z]*\.?"
_TIME = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s?(?:[AaPp][Mm])?(?:Z|[+-]\d{2}:?\d{2})?)?"
DATE_TEXT = (
    rf"(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}{_TIME}|\d{{1,2}}[-/.]\d{{1,2}}[-/.](?:\d{{4}}|\d{{2}}){_TIME}"
    rf"|\d{{1,2}}[ -]{_MONTH}[ "
    rf",-]+\d{{2,4}}{_TIME}|{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}{_TIME})"
)
_STREET = (
    r"(?:street|st|avenue|ave|road|rd|boulevard|blvd|drive|dr|lane|ln|court|ct|place|pl|way|terrace|ter|circle|cir"
    r"|highway|hwy|parkway|pkwy|square|sq|close|crescent|strasse|straße|weg)"
)
_PHONE = (
    r"(?:\+?\d{1,3}[ .-]?)?(?:\(\d{3}\)\s?|\d{3}[ .-])\d{3}[ .-]\d{4}(?:\s?(?:x|ext\.?)\s?\d{1,6})?"
)
_WORLD_PHONE = r"\+\d{1,3}(?:[ .()-]{0,2}\d){7,12}"

_ADDRESS = (
    rf"\d{{1,6}}[a-z]?\s+(?:[\w.'-]+\s+){{1,4}}{_STREET}\b\.?.*|.*\bp\.?\s?o\.?\s*box\s+\d+.*"
)
_PLATE = r"[A-Z]{2,3}[- ]\d{3,4}|\d[A-Z]{3}\d{3}|[A-Z]{2}\d{2}\s?[A-Z]{3}|\d{3}[- ][A-Z]{3}"
_LETTER, _EITHER = "[AC-HJKMNP-RT-Y]", "[AC-HJKMNP-RT-Y0-9]"
_MEDICARE = rf"[1-9]{_LETTER}{_EITHER}\d-?{_LETTER}{_EITHER}\d-?{_LETTER}{{2}}\d{{2}}"
_PLAN = r"(?:hpn|hpbn|plan|member|mem|policy|pol|group|grp|subscriber|bcbs|hmo|ppo)[-:# ]{1,2}[A-Z0-9-]{4,}"
_BIOMETRIC = (
    r"Rk1S[A-Za-z0-9+/=]{20,}|(?:fingerprint|iris|voiceprint|retina|faceprint|minutiae)[-_:./ ].+"
)


def real_date(text: str) -> bool:
    """Whether digits in a date's shape can be a date: months to 12, days to 31."""
    parts = [int(p) for p in re.findall(r"\d+", text.split(":")[0])]
    if re.search(r"[A-Za-z]{3}", text):
        return bool(parts) and 1 <= parts[0] <= 31
    if len(parts) < 3:
        return False
    day = parts[1:3] if len(re.findall(r"\d+", text)[0]) == 4 else parts[0:2]
    return min(day) >= 1 and min(day) <= 12 and max(day) <= 31


def compact_date(text: str) -> bool:
    """Eight digits that are a day between 1880 and 2100."""
    try:
        return 1880 <= date(int(text[:4]), int(text[4:6]), int(text[6:])).year <= 2100
    except ValueError:
        return False


def _ssn(text: str) -> bool:
    area, group, serial = re.findall(r"\d+", text)
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _dea(text: str) -> bool:
    a, b, c, d, e, f, check = (int(digit) for digit in text[2:])
    return (a + c + e + 2 * (b + d + f)) % 10 == check


def person(text: str) -> bool:
    """Whether a word of the text is a common first or last name."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    return any(word in FIRST_NAMES or word in LAST_NAMES for word in words)


_WORD = r"[A-ZÀ-Þ][a-zà-ÿ'’]+(?:[-'’][A-ZÀ-Þ][a-zà-ÿ]+)?"
_NAME = rf"(?:(?:Mr|Mrs|Ms|Dr|Prof)\.?\s)?{_WORD}(?:,\s{_WORD}|\s(?:{_WORD}|[A-Z]\.?)){{1,3}}"


def _sign(
    name: str, category: str, pattern: str, check: Check | None = None, strong: bool = True
) -> Sign:
    cased = 0 if category == "name" else re.IGNORECASE
    return Sign(name, category, re.compile(pattern, cased), check, strong)


SIGNS = (
    _sign("e-mail", "email", r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"),
    _sign("web address", "url", r"(?:https?|ftp)://\S+|www\.[\w-]+(?:\.[\w-]+)+\S*"),
    _sign("IP address", "ip", r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f:]*:[0-9a-f:]*:[0-9a-f:.]*", ip_address),
    _sign("MAC address", "device", r"[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}"),
    _sign("unique device identifier", "device", r"\(01\)\d{14}.*|\+[A-Z0-9]{4,}/.*"),
    _sign("serial number", "device", r"(?:s/?n|serial|dev|udi|imei)[-:# ]{1,2}[A-Z0-9-]{4,}"),
    _sign("IMEI", "device", r"\d{15}|\d{2}-\d{6}-\d{6}-\d", luhn, strong=False),
    _sign("social security number", "ssn", r"\d{3}-\d{2}-\d{4}", _ssn),
    _sign("fax number", "fax", rf"fax:?\s*(?:{_PHONE}|{_WORLD_PHONE})"),
    _sign("telephone number", "phone", rf"(?:(?:tel|phone|ph|mobile|cell)[.:]*\s*)?(?:{_PHONE}|{_WORLD_PHONE})"),
    _sign("ten digits", "phone", r"1?[2-9]\d{2}[2-9]\d{6}", strong=False),
    _sign("date", "date", DATE_TEXT, real_date),
    _sign("compact date", "date", r"\d{8}", compact_date, strong=False),
    _sign("ZIP+4", "geography", r"\d{5}-\d{4}"),
    _sign("ZIP code", "geography", r"\d{5}", strong=False),
    _sign("postcode", "geography", r"[A-Z]{1,2}\d[A-Z\d]?\s\d[A-Z]{2}|[A-Z]\d[A-Z] \d[A-Z]\d", strong=False),
    _sign("street address", "geography", _ADDRESS),
    _sign("coordinates", "geography", r"\(?-?\d{1,2}\.\d{3,}\s*[,;]\s*-?\d{1,3}\.\d{3,}\)?"),
    _sign("city and state", "geography", r"[A-Z][\w.' -]+,\s?[A-Z]{2}(?:\s+\d{5}(?:-\d{4})?)?", strong=False),
    _sign("city", "geography", r"[A-Z][A-Za-z.' -]+", lambda text: text.lower() in CITIES, strong=False),
    _sign("VIN", "vehicle", r"[A-HJ-NPR-Z0-9]{17}", vin),
    _sign("number plate", "vehicle", _PLATE, strong=False),
    _sign("IBAN", "account", r"[A-Z]{2}\d{2}(?:\s?[A-Z0-9]{4}){3,7}(?:\s?[A-Z0-9]{1,3})?", iban),
    _sign("card number", "account", r"(?:\d{4}[ -]?){3}\d{4}|3[47]\d{13}", luhn),
    _sign("account number", "account", r"(?:acct?|account|iban)[-:#. ]{1,2}[A-Z0-9-]{4,}"),
    _sign("Medicare number", "health_plan", _MEDICARE),
    _sign("health plan number", "health_plan", _PLAN),
    _sign("record number", "record_number", r"(?:mrn|mr|mrno|emr|ehr|chart|pid|rec)[-:# ]{0,2}\d{4,}[A-Z]?"),
    _sign("NHS number", "record_number", r"\d{3} \d{3} \d{4}", nhs_number),
    _sign("DEA number", "licence", r"[ABFGMPR][A-Z9]\d{7}", _dea),
    _sign("licence number", "licence", r"(?:lic|licen[cs]e|cert|npi|dea|reg|rn|md|dl)[-:# ]{1,2}[A-Z0-9-]{4,}"),
    _sign("biometric template", "biometric", _BIOMETRIC),
    _sign("image data", "photo", r"(?:data:image/[a-z]+;base64,|/9j/|iVBORw0KGgo|R0lGOD)[A-Za-z0-9+/=]{8,}"),
    _sign("image file", "photo", r"[\w ./\\:~-]+\.(?:jpe?g|png|gif|bmp|tiff?|heic|webp|dcm)"),
    _sign("UUID", "other", r"\{?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\}?"),
    _sign("hash", "other", r"(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})"),
    _sign("person", "name", _NAME, person, strong=False),
    _sign("surname", "name", _WORD, person, strong=False),
)  # fmt: skip


INSIDE = {
    # What free text is searched for, anywhere in it; DuckDB's regular expressions (RE2) must
    # understand these.
    "email": r"[\w.+-]+@[\w-]+\.[\w.-]+",
    "url": r"(?:https?|ftp)://\S+|\bwww\.[\w-]+\.\S+",
    "ssn": r"\b\d{3}-\d{2}-\d{4}\b",
    "phone": r"(?:\(\d{3}\)\s?|\b\d{3}[.-])\d{3}[ .-]\d{4}\b|\+\d{1,3}[ .-]\d[\d .()-]{6,}\d",
    "ip": r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
    "date": r"\b(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4})\b",
    "record_number": r"(?i:\bMRN[-:# ]{0,2}\d{4,})",
    "geography": r"\b\d{5}-\d{4}\b|\b\d{1,6} (?:[A-Z][\w.]+ ){1,3}(?:Street|St|Avenue|Ave|Road|Rd|Drive|Dr|Lane|Ln)\b",
    "name": r"\b(?:Mr|Mrs|Ms)\.? [A-Z][a-z]+",
}


# --- what a column's name hints at ------------------------------------------------------------------------------------

_HINTS = r"""
    fax           (tele)?fax( no| nr| number)?|facsimile
    email         e ?mail|mail address
    ssn           ssn|social security( no| number| nr| num)?|soc sec|sin number
    health_plan   (health )?plan (id|no|number|beneficiary)|beneficiary( id| no| number)?
    health_plan   member (id|no|number)|subscriber( id| no| number)?|policy( id| no| number)?
    health_plan   insurance (id|no|number)|medicare( id| no| number)?|mbi|hicn
    health_plan   medicaid (id|no|number)
    record_number mrn|medical record( id| no| number)?|record (id|no|number)|chart (id|no|number)
    record_number patient (id|no|number|key|code)|pat id|pid|subject (id|no|number)
    record_number hospital (no|number)|nhs( no| number)?|encounter (id|no|number)
    record_number visit (id|no|number)|csn|case (id|no|number)|person id
    account       acc(oun)?t( id| no| num| number)?|iban|credit card( no| number)?|card (no|number)
    account       bank( account)?|billing (id|no|number)|invoice (id|no|number)
    licence       licen[cs]e( id| no| number)?|certificate( id| no| number)?|cert (id|no|number)|npi
    licence       dea( no| number)?|passport( no| number)?|driver.?s? licen[cs]e.*
    vehicle       vin|vehicle( id| identification.*| no| number)?|plate( no| number)?
    vehicle       licen[cs]e plate|registration plate|number plate
    device        device( id| identifier| no| number| serial)?|serial( no| number)?|imei
    device        mac( address)?|udi|implant( id| no| serial| number)?|pacemaker (id|no|serial)
    url           url|uri|web ?site|web page|homepage|link|web address
    ip            ip|ip ?addr(ess)?|ipv4|ipv6|host( name)?|client ip|remote addr
    biometric     biometric.*|finger ?print.*|iris.*|retina( scan| template)|voice ?print
    biometric     face ?print|minutiae|.*template hash
    photo         photo.*|portrait|face image|picture|image( file| path| url)?|avatar|mug ?shot
    photo         snapshot|selfie
    phone         (tele)?phone( no| number)?|tel|mobile( no| number)?|cell( phone)?( no| number)?
    phone         contact (no|number)|(home|work|day|emergency) (tele)?phone
    date          .*\b(date|datetime|timestamp|dob|dod|birthday)
    date          .*\b(admitted|discharged|admission|discharge|visit|death|birth) (day|dt|time|on)
    date          (admitted|discharged|died|born)( on| at)?|dt|.* dt|year of birth|birth year|yob
    date          admission|discharge|.*\bat time
    age           age|.* age|age (years|yrs|at .*|in years)|years old
    zip           zip( ?code)?.*|post(al)? ?code|plz|postcode
    geography     (street|home|mailing|postal|residential|patient)?( ?address)(line)?( line)?
    geography     addr(ess)?( line)?|street.*|city|town|county|village|precinct|parish
    geography     neighbou?rhood|municipality|lat(itude)?|lon(gitude)?|lng|geo ?code|gps
    geography     coordinates?|census tract|census block|tract|ward of residence|birth ?place
    geography     residence
    name          name
    name          (first|last|middle|full|given|family|maiden|patient|sur|nick|mother.?s?) ?(first |last |full |maiden )?name
    name          (father.?s?|contact|guardian|next of kin|physician|doctor|provider) ?(first |last |full |maiden )?name
    name          (nurse|attending|clinician|relative|employer|household member) ?(first |last |full |maiden )?name
    name          surname|forename|fname|lname|initials|patient|physician|doctor|attending|mother
    name          father|next of kin|guardian|signature
    text          (clinical |doctor |nursing |progress |free |discharge )?(notes?|comments?|remarks?)( text)?
    text          (clinical |doctor |nursing |progress |free |discharge )?(narrative|free text|summary)( text)?
    text          (clinical |doctor |nursing |progress |free |discharge )?(text|description|history)( text)?
    text          (clinical |doctor |nursing |progress |free |discharge )?(memo|report)( text)?
    other         .*\b(uuid|guid|token|hash)
    other         (study|sample|specimen|barcode|tracking|reference|ref|unique) ?(id|no|number|code|name)?
    other         (employee|user|login|customer|client|family|national|tax|device order) ?(id|no|number|code|name)?
    other         barcode|id|identifier|.* (id|identifier)|key|username|user|badge.*|kit (no|number)
"""
HINTS = [tuple(line.split(maxsplit=1)) for line in _HINTS.strip().splitlines()]
"""Category and pattern; the first that matches wins. Patterns are of the name's words (`words_of`)."""
NOT_A_PERSON = re.compile(
    r"\b(drug|medication|medicine|test|lab|procedure|product|brand|generic|hospital|ward|department|unit|clinic|study|file|column"
    r"|field|variable|diagnosis|disease|gene|species|vaccine|organism|antibiotic|panel|assay|allergen)\b"
)
COUNTED = re.compile(
    r"\b(count|n|num of|number "
    r"of|total|rate|score|index|level|type|kind|class|status|flag|verified|changed|opt in|opt out|"
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
    """The category a column's name hints at (also ``age``, ``zip`` and ``text``), or None."""
    words = words_of(column)
    for category, pattern in HINTS:
        if re.fullmatch(pattern, words):
            if category == "name" and NOT_A_PERSON.search(words):
                return None
            if COUNTED.search(words) and category not in ("text", "age", "record_number"):
                return None
            return category
    return None


# --- what its values look like ----------------------------------------------------------------------------------------

_FLAGS = "0 1 y n yes no true false t f 0.0 1.0 unknown na none"
FLAGS = set(_FLAGS.split())
CLINICAL = re.compile(
    r"\b(cpt|icd|loinc|snomed|atc|ndc|drg|hcpcs|rxnorm|cui|diagnosis|diagnoses|dx|procedure|drug|medication|code system|gene|"
    r"variant|rs ?id|lab|test|result|value|unit|units|sex|gender|race|ethnicity|state|country)\b"
)
_CODE = re.compile(r"(?=[^\s]*\d)[A-Za-z0-9][A-Za-z0-9_./:#-]{3,}")
_MEDICAL_CODE = re.compile(
    r"[A-Z]\d[\dA-Z](?:\.[\dA-Z]{1,4})?|[A-Z]\d{2}[A-Z]{2}\d{2}|\d{3,5}-\d|\d{4,5}-\d{3,4}-\d{1,2}|rs\d+"
)
_PART = r"[A-ZÀ-Þ][a-zà-ÿ'’]+(?:[-'’][A-ZÀ-Þ][a-zà-ÿ]+)*"
_NAME_SHAPE = re.compile(rf"{_PART}(?:,? (?:{_PART}|[A-Z]\.?)){{1,3}}")
_YEAR = re.compile(r"(?:18[89]|19\d|20\d)\d(?:\.0)?")
_EIGHT_DIGITS = re.compile(r"\d{8}")
_AGE_BAND = re.compile(r"\d{1,3}\s?(?:-|to|–)\s?\d{1,3}|\d{1,3}\+|[<>]=?\s?\d{1,3}")
GENERALISED = {
    "year": "year only",
    "age": "ages over 89 as 90+",
    "zip3": "first three digits of the ZIP code",
}


@dataclass(frozen=True)
class Finding:
    """What a column seems to be, and what to do with it. Holds no value."""

    column: str
    category: str | None  # one of the eighteen, ``text`` for free text, or None
    sign: str
    share: float  # share of the values that show the sign
    confidence: str
    action: str  # keep, drop, or generalise
    how: str = ""  # with generalise: year, age or zip3
    inside: dict[str, float] = field(default_factory=dict)
    """For texts: share of values with an identifier of each category somewhere inside."""

    def as_dict(self) -> Report:
        """Plain JSON."""
        words = "free text" if self.category == "text" else CATEGORIES.get(self.category or "", "")
        return {**asdict(self), "rule": words, "how": GENERALISED.get(self.how, "")}


@dataclass(frozen=True)
class Values:
    """A column's values: their shape over all rows, and a sample of distinct ones (never shown)."""

    rows: int
    distinct: int
    numeric: float
    decimals: float
    words: float
    kind: str
    sample: list[tuple[str, int]]
    inside: dict[str, float]

    @property
    def spread(self) -> float:
        """Distinct values per row."""
        return self.distinct / self.rows if self.rows else 0.0

    def share(self, fits: Callable[[str], object]) -> float:
        """Share of the sampled values that fit."""
        total = sum(count for _, count in self.sample)
        return sum(count for value, count in self.sample if fits(value)) / total if total else 0.0


def refuse_data_as_names(names: Sequence[str], place: str) -> None:
    """Refuse a file without a header: it would put a patient's values where names are printed."""
    strong = [sign for sign in SIGNS if sign.strong and sign.category not in ("photo", "biometric")]
    if any(sign.fits(name) for name in names for sign in strong):
        raise DataError(
            f"{place}: the first line looks like a patient's data, not like column names (they are "
            "not shown); add a header line"
        )


# --- the judgement ----------------------------------------------------------------------------------------------------


def judge(column: str, seen: Values) -> Finding:
    """Weigh a column's name against its values."""
    hint, clinical = hint_of(column), bool(CLINICAL.search(words_of(column)))
    if not seen.rows:
        return _keep(column, "empty")
    if seen.kind.startswith(("DATE", "TIMESTAMP")):
        return _act(column, "date", "date type", confidence="high", how="year")
    if {value.lower() for value, _ in seen.sample} <= FLAGS:
        return _keep(column, "yes or no")
    found = _by_value(column, hint, seen, clinical) or _by_name(column, hint, seen)
    if found is None and not clinical:
        found = _by_shape(column, seen)
    if found is None and seen.inside:
        category, share = max(seen.inside.items(), key=lambda item: item[1])
        found = _act(column, category, "inside some values", share, inside=seen.inside)
    return found or _keep(column, "number" if seen.numeric > 0.95 else "category or code")


def _keep(column: str, why: str) -> Finding:
    return Finding(column, None, why, 0.0, "", "keep")


def _act(
    column: str,
    category: str,
    sign: str,
    share: float = 1.0,
    confidence: str = "medium",
    how: str = "",
    inside: dict[str, float] | None = None,
) -> Finding:
    action = "generalise" if how else "drop"
    return Finding(column, category, sign, share, confidence, action, how, inside or {})


def _by_value(column: str, hint: str | None, seen: Values, clinical: bool) -> Finding | None:
    """Signs that count alone: at least half of the values show one."""
    shares: dict[str, tuple[float, str]] = {}
    for sign in SIGNS:
        if sign.strong:
            share = seen.share(sign.fits)
            if share > shares.get(sign.category, (0.0, ""))[0]:
                shares[sign.category] = (share, sign.name)
    if not shares:
        return None
    best = max(shares, key=lambda category: (shares[category][0], category == hint))
    share, name = shares[best]
    if share < 0.5:
        # A tenth of the values are still people's: taken, unless the column's name is clinical.
        mixed = share > 0.02 and not clinical and hint is None
        return _act(column, best, f"some values: {name}", share) if mixed else None
    if hint in ("fax", "phone") and best in ("fax", "phone"):
        best = hint  # the two have one shape
    how = "year" if best == "date" else "zip3" if name == "ZIP+4" else ""
    inside = seen.inside if seen.words > 4 and not how else {}
    return _act(column, best, name, share, "high", how, inside)


def _by_name(column: str, hint: str | None, seen: Values) -> Finding | None:
    """What the name hints at, unless the values speak against it."""
    measured, number = seen.decimals > 0.1, seen.numeric > 0.95
    if hint is None:
        return None
    if hint == "age":
        banded = seen.share(_AGE_BAND.fullmatch) > 0.9
        return None if banded else _act(column, "date", "named as an age", 1.0, "high", "age")
    if hint == "zip":
        return _act(column, "geography", "named as a ZIP code", 1.0, "high", "zip3")
    if hint == "date":
        years = seen.share(_YEAR.fullmatch) >= 0.9 or seen.share(_EIGHT_DIGITS.fullmatch) >= 0.9
        if not number or years:
            return _act(column, "date", "named as a date", how="year")
        few = measured or seen.distinct < 400
        return None if few else _act(column, "date", "named as a date", confidence="low")
    if hint == "text":
        prose = seen.words >= 3 or (seen.spread > 0.5 and seen.numeric < 0.5 and seen.distinct > 20)
        return _act(column, "text", "free text", inside=seen.inside) if prose else None
    if hint == "geography":
        return _act(column, hint, "named as a place")
    few = seen.distinct <= 12 and seen.spread < 0.05
    if measured or (number and seen.distinct <= 12) or (few and hint != "name"):
        return None
    return _act(column, hint, "named as one", inside=seen.inside if seen.words > 4 else {})


_SHAPES = (  # sign, least share of the values, least spread
    ("ten digits", 0.98, 0.5),
    ("IMEI", 0.95, 0.5),
    ("compact date", 0.95, 0.0),
    ("ZIP code", 0.99, 0.0),
    ("postcode", 0.95, 0.0),
    ("number plate", 0.95, 0.5),
    ("city and state", 0.8, 0.0),
    ("city", 0.5, 0.0),
)


def _by_shape(column: str, seen: Values) -> Finding | None:
    """Signs that many columns could show: nearly every value must, and must single people out."""
    many = seen.distinct >= 20
    weak = {s.name: (seen.share(s.fits), s.category) for s in SIGNS if not s.strong}
    for name, least, spread in _SHAPES:
        share, category = weak[name]
        if share >= least and seen.spread >= spread and (many or category == "geography"):
            how = {"compact date": "year", "ZIP code": "zip3"}.get(name, "")
            return _act(column, category, name, share, how=how)
    if seen.words >= 5 and seen.spread > 0.1 and seen.distinct > 20:
        return _act(column, "text", "free text", inside=seen.inside)
    shape, listed = seen.share(_NAME_SHAPE.fullmatch), weak["person"][0]
    named = shape > 0.8 and listed > (0.2 if many else 0.5)
    if named or (many and shape > 0.9 and seen.spread > 0.5):
        return _act(column, "name", "shaped as names", shape)
    if many and weak["surname"][0] > 0.3:
        return _act(column, "name", "common names", weak["surname"][0])
    return _code(column, seen)


def _code(column: str, seen: Values) -> Finding | None:
    """A code that singles rows or patients out."""
    if seen.decimals > 0.01 or seen.rows < 20:
        return None
    if seen.numeric > 0.95:
        widths = {len(value) for value, _ in seen.sample}
        long = min(widths) >= 9 or (len(widths) == 1 and min(widths) >= 6)
        return _act(column, "other", "unique number") if seen.spread > 0.95 and long else None
    share = seen.share(_CODE.fullmatch)
    single = seen.spread > 0.5 or (seen.spread > 0.1 and seen.distinct > 200)
    if share > 0.95 and seen.share(_MEDICAL_CODE.fullmatch) < 0.5 and single:
        return _act(column, "other", "unique code", share)
    if seen.share(lambda value: len(value) > 40 and " " not in value) > 0.9 and seen.spread > 0.5:
        return _act(column, "biometric", "long encoded data", confidence="low")
    return None
