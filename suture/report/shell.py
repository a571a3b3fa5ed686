"""The shell of every page: one file, no network, and no script but the ones named by their hash.

The drawing libraries (Vega, Vega-Lite) are written into the page; a content security policy in the
page forbids every connection and every other script, so that a hospital's or a study's name can
never run as code, whatever it contains.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from suture.report.theme import VEGALITE, Figure

_DRAW = (files("suture.report") / "draw.js").read_text(encoding="utf-8")


_PAGES = Environment(
    loader=PackageLoader("suture", "report"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip


def fill(
    template: str,
    context: Mapping[str, object],
    charts: Mapping[str, Figure],
    captions: Mapping[str, str],
    name: str,
    script: str = "",
) -> str:
    """A page from a template, with every chart drawn in the page and downloadable under ``name``.

    ``script`` is a further script of ours, allowed by its hash like the others; it must hold no
    text of a study.
    """
    scripts = [_libraries(), Markup(_DRAW), *([Markup(script)] if script else [])]
    hashes = " ".join(f"'{_digest(text)}'" for text in scripts)
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)
    stem = safe.strip("-")[:40] or "study"
    return _PAGES.get_template(template).render(
        **context,
        figures={
            key: {"caption": captions[key], "file": f"{stem}-{key.replace('_', '-')}"}
            for key in charts
        },
        specs=script_safe({key: chart.to_dict(validate=False) for key, chart in charts.items()}),
        libraries=scripts[0],
        draw=scripts[1],
        script=Markup(script),
        style=Markup(_PAGES.get_template("page.css").render()),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {hashes}",
    )


def put(text: str, path: Path) -> None:
    """Write a page; whoever has the old one open never sees half of the new one."""
    part_written = path.with_name(path.name + ".part")
    part_written.write_text(text, encoding="utf-8", newline="\n")
    os.replace(part_written, path)


def script_safe(value: object) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


@functools.lru_cache(maxsize=1)
def _libraries() -> Markup:
    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGALITE)
    return Markup(text.replace("\r\n", "\n").replace("</script", "<\\/script"))


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
