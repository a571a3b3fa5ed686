"""What the documentation site adds to the pages of this folder: files of the repository's root, the
notebooks, and the pictures that `make gallery` has made."""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
EXTRA = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmark-scripts.md",
    **{
        f"examples/{path.name}": f"notebooks/{path.stem}.md"
        for path in sorted((ROOT / "examples").glob("*.ipynb"))
    },
}
"""Files outside this folder, by the page that shows each."""


def on_files(files, config):
    """Add the extra pages, with links as they are seen from docs/."""
    for source, page in EXTRA.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".ipynb"):
            text = _notebook(json.loads(text))
        text = _links(text, posixpath.dirname(source), posixpath.dirname(page))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links that leave docs/ lead to the extra pages; the gallery shows what there is."""
    here = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri not in EXTRA.values():
        markdown = _links(markdown, posixpath.normpath(posixpath.join("docs", here)), here)
    if page.file.src_uri == "gallery.md":
        markdown += _pictures()
    return markdown


def _links(text, folder, here):
    """Rewrite relative links of a file in ``folder`` for the page in ``here``. A link to a file
    that the site does not show becomes plain text."""

    def rewritten(match):
        words, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or not target:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if path not in EXTRA and not path.startswith("docs/"):
            return words
        there = EXTRA.get(path, path.removeprefix("docs/"))
        return f"[{words}]({posixpath.relpath(there, here or '.')}{anchor})"

    return re.sub(r"\[([^\[\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)", rewritten, text)


def _notebook(book):
    cells = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        cells.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
    return "\n\n".join(cells) + "\n"


def _pictures():
    """Every folder of the gallery: links to its pages, and each picture once (SVG if there is
    one)."""
    text = ""
    for folder in sorted((ROOT / "docs" / "gallery").glob("*")):
        files = [path.relative_to(ROOT / "docs") for path in sorted(folder.rglob("*"))]
        pages = [f"[{path.stem}]({path.as_posix()})" for path in files if path.suffix == ".html"]
        vectors = {path.with_suffix("") for path in files if path.suffix == ".svg"}
        rasters = {path.with_suffix("") for path in files if path.suffix == ".png"}
        pictures = [(path, ".svg" if path in vectors else ".png") for path in vectors | rasters]
        text += f"\n### {folder.name}\n\n" + (f"Pages: {', '.join(pages)}\n\n" if pages else "")
        for path, kind in sorted(pictures):
            text += f"![{path.stem}]({path.as_posix()}{kind})\n\n"
    return text or "\nThis copy of the site was built without them: run `make gallery docs`.\n"
