"""docs/design.md is the map: its tables are the ones the import test holds, and its listing is the
folder."""

import re
from pathlib import Path

from test_imports import ALLOWED, ONLY, ROOT

PAGE = (Path(__file__).parents[2] / "docs" / "design.md").read_text(encoding="utf-8")


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S).group(1)


def tables(text):
    """Two-column tables as {first cell: names in backquotes in the second}."""
    found = [{}]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            if found[-1]:
                found.append({})
        elif cells[0].startswith("`"):
            found[-1][cells[0].strip("`")] = set(re.findall(r"`([^`]+)`", cells[1]))
    return [table for table in found if table]


def test_the_tables_are_the_rules_that_are_tested():
    rooms, packages = tables(section("Who may import whom"))
    assert rooms == ALLOWED
    assert packages == ONLY


def test_the_listing_is_the_folder():
    listing = re.search(r"^suture/\n(.*?)^tests/", section("Rooms"), re.M | re.S).group(1)
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in ROOT.glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"^  (\w+)/", listing, re.M)) == rooms
    assert set(re.findall(r"(?<=  )(\w+\.py)\b", listing)) == modules


def test_every_file_the_page_names_is_there():
    repository = ROOT.parent
    for name in re.findall(r"`(\w+/[\w/]+\.(?:py|md|toml))`", PAGE):
        assert (repository / name).exists() or (ROOT / name).exists(), name
    for name in re.findall(r"\]\(([\w-]+\.md)\)", PAGE):
        assert (repository / "docs" / name).exists(), name
