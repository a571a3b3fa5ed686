"""Pages that cannot drift: every page is in the README's list, every link leads somewhere, every cited preprint is listed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks/README.md"]
)


def anchors(path):
    """Headings as GitHub turns them into anchors."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M):
        found.add(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_merge_left_its_marks(page):
    assert not re.search(r"^(<{7}|>{7}) |^={7}$", page.read_text(encoding="utf-8"), re.M)


def test_every_page_is_in_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in text, page.name


def test_every_preprint_that_is_cited_is_in_the_list():
    listed = set(re.findall(r"arXiv:(\d{4}\.\d{5})", (ROOT / "docs/references.md").read_text(encoding="utf-8")))
    for path in [*(ROOT / "suture").rglob("*.py"), *PAGES]:
        cited = set(re.findall(r"arXiv:(\d{4}\.\d{5})", path.read_text(encoding="utf-8")))
        assert cited <= listed, path


def test_every_file_the_references_name_is_there():
    for name in re.findall(r"`(\w+/\w+\.py)`", (ROOT / "docs/references.md").read_text(encoding="utf-8")):
        assert (ROOT / "suture" / name).exists(), name
