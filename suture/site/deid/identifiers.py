"""What the eighteen Safe Harbor identifiers look like in a column's values.

The list is that of 45 CFR 164.514(b)(2)(i), (A) to (R). A pattern here is a *sign*, not a proof:
names have no shape, and a number is an identifier because of what it stands for. ``find.py`` weighs
the signs of a column's values against its name. Signs that carry a check digit or a fixed mark
(e-mail, URL, IP address, VIN, IBAN) count alone; those that any number could show (five digits: a
ZIP code?) count only when nearly every value shows them.

Names and cities are the top of public lists of the United States (Census surnames, Social Security
first names, cities by population). A name that is not here is still found by its column's name or
by its shape; docs/deidentification.md says what is missed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

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
"""Three-digit areas of 20,000 people or fewer: Census 2000 (the 17 of the guidance of 2012) and
Census 2010, united. The rule binds to the current census: pass newer ones to `apply`."""


Check = Callable[[str], bool]


@dataclass(frozen=True)
class Sign:
    """One shape of values: its category, a pattern for the whole value, and an optional check of
    its content."""

    name: str
    category: str
    pattern: re.Pattern[str]
    check: Check | None = None
    strong: bool = True
    """Counts alone, and is looked for inside free text; a weak sign needs nearly every value to
    show it."""

    def fits(self, text: str) -> bool:
        """Whether a whole value shows the sign."""
        return self.pattern.fullmatch(text) is not None and (self.check is None or self.check(text))


def luhn(text: str) -> bool:
    """The check digit of cards, IMEIs and NPIs.

    >>> luhn("4539 1488 0343 6467"), luhn("4539148803436468")
    (True, False)
    """
    digits = _digits(text)[::-1]
    doubled = sum(sum(divmod(2 * d, 10)) for d in digits[1::2])
    return (sum(digits[0::2]) + doubled) % 10 == 0 and any(digits)


def _digits(text: str) -> list[int]:
    return [int(c) for c in re.sub(r"\D", "", text)]


def vin(text: str) -> bool:
    """A vehicle identification number's check digit (49 CFR 565.15).

    >>> vin("1HGCM82633A004352"), vin("1HGCM82633A004353")
    (True, False)
    """
    values = dict(zip("ABCDEFGHJKLMNPRSTUVWXYZ0123456789", [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 7, 9, 2, 3, 4, 5, 6, 7,
                      8, 9, *range(10)], strict=True))  # fmt: skip
    weights = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
    text = text.upper()
    if len(text) != 17 or any(c not in values for c in text):
        return False
    rest = sum(weight * values[c] for weight, c in zip(weights, text, strict=True)) % 11
    return text[8] == ("X" if rest == 10 else str(rest))


def iban(text: str) -> bool:
    """An international bank account number's check (ISO 13616).

    >>> iban("GB82 WEST 1234 5698 7654 32")
    True
    """
    text = text.replace(" ", "").upper()
    return int("".join(str(int(c, 36)) for c in text[4:] + text[:4])) % 97 == 1


def ip_address(text: str) -> bool:
    """A version 4 or 6 address.

    >>> ip_address("10.2.0.7"), ip_address("2001:db8::1"), ip_address("300.1.1.1")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def nhs_number(text: str) -> bool:
    """The check digit of a number of the National Health Service (modulus 11).

    >>> nhs_number("943 476 5919")
    True
    """
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
    """Whether digits in a date's shape can be a date: months to 12, days to 31.

    >>> real_date("2021-02-30"), real_date("31/12/99"), real_date("45/45/2000")
    (True, True, False)
    """
    parts = [int(p) for p in re.findall(r"\d+", text.split(":")[0])]
    if re.search(r"[A-Za-z]{3}", text):
        return bool(parts) and 1 <= parts[0] <= 31
    if len(parts) < 3:
        return False
    day = parts[1:3] if len(re.findall(r"\d+", text)[0]) == 4 else parts[0:2]
    return min(day) >= 1 and min(day) <= 12 and max(day) <= 31


def compact_date(text: str) -> bool:
    """Eight digits that are a day between 1880 and 2100.

    >>> compact_date("20210228"), compact_date("20210230"), compact_date("12345678")
    (True, False, False)
    """
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
    """Whether a word of the text is a common first or last name.

    >>> person("Smith, John"), person("Heart Failure")
    (True, False)
    """
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
