"""The heat maps in a real browser that is cut off from the network: drawn, marked, sortable, and
telling at every cell."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from suture.interop import report as interop
from suture.interop.evidence import circles, crosses

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
# Points at one cell after another as a mouse would, notes what the box says and how the marks look,
# and writes it down where --dump-dom shows it.
LOOK = """
(function () {
  const box = document.querySelector("[data-heat]"), cells = box.querySelector("canvas.cells"), found = {};
  const map = JSON.parse(document.getElementById("heat").textContent)[box.dataset.heat];
  const wide = parseFloat(cells.style.width), high = parseFloat(cells.style.height);
  const shown = parseInt(box.querySelector(".count").textContent), size = Math.floor((wide - 2) / shown);
  const head = high - 6 - map.rows.length * 22;
  function point(r, c) {
    const at = cells.getBoundingClientRect();
    const x = at.left + (c + 0.5) * size, y = at.top + head + (r + 0.5) * 22;
    cells.dispatchEvent(new MouseEvent("mousemove", {clientX: x, clientY: y}));
    const tip = document.querySelector(".tip"), place = tip.getBoundingClientRect();
    return {text: tip.textContent, hidden: tip.hidden,
            inside: place.left >= 0 && place.right <= innerWidth && place.top >= 0 && place.bottom <= innerHeight};
  }
  const dark = function (x, y, w, h) {
    const k = cells.width / parseFloat(cells.style.width);
    const d = cells.getContext("2d").getImageData(x * k, y * k, w * k, h * k).data;
    let n = 0;
    for (let i = 0; i < d.length; i += 4) if (Math.max(d[i], d[i + 1], d[i + 2]) < 90 && d[i + 3] > 0) n += 1;
    return n;
  };
  found.first = point(0, 0);
  const marked = box.querySelector("input.marked"), order = box.querySelector("select[name=columns]");
  marked.checked = false; marked.dispatchEvent(new Event("change"));
  order.value = "schema"; order.dispatchEvent(new Event("change"));
  found.all = box.querySelector(".count").textContent;
  found.planted = point(PLANTED);
  found.last = point(map.rows.length - 1, 1);
  found.ring = dark(PLANTED_C * size, head + PLANTED_R * 22, size, 22);
  found.plain = dark(PLANTED_C * size, head + (PLANTED_R + 1) * 22, size, 22);
  found.cross = dark(PLANTED_C * size, head - 16, size, 14);
  found.nocross = dark((PLANTED_C + 1) * size, head - 16, size, 14);
  cells.dispatchEvent(new MouseEvent("mouseleave")); found.gone = document.querySelector(".tip").hidden;
  order.value = "spread"; order.dispatchEvent(new Event("change")); found.sorted = point(0, 0).text;
  document.body.dataset.found = JSON.stringify(found);
})();
"""


def report(sites, columns, row, column):
    """A report with one wild cell, which is the only one with either mark where marks can occur."""
    values = np.random.default_rng(1).normal(0, 0.02, (sites, columns))
    values[row, column] = 1.5
    layer = {
        "columns": [f"column {j}" for j in range(columns)],
        "about": [f"words <i>{j}</i>" for j in range(columns)],
        "values": values.tolist(),
        "circles": circles(values).astype(int).tolist(),
        "crosses": crosses(values).astype(int).tolist(),
    }
    return {
        "name": "maps", "sites": [f"site {i:02d}" for i in range(sites)], "layers": {"b_in": layer}, "findings": [],
        "notices": [], "headline": "", "banner": "", "method": [], "tolerance": {}, "nothing": "", "command": "",
    }  # fmt: skip


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium browser: apt-get install chromium")
@pytest.mark.parametrize(("sites", "columns"), [(30, 261), (4, 20)])
def test_marks_are_seen_and_every_cell_tells(sites, columns, tmp_path, monkeypatch):
    row, column = sites - 2, 3
    look = (
        LOOK.replace("PLANTED_C", str(column))
        .replace("PLANTED_R", str(row))
        .replace("PLANTED", f"{row}, {column}")
    )
    monkeypatch.setattr(interop, "SCRIPT", interop.SCRIPT + look)
    made = report(sites, columns, row, column)
    (tmp_path / "interop.html").write_text(interop.render(made))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}",
               "--window-size=1280,1000", "--virtual-time-budget=3000", "--dump-dom",
               (tmp_path / "interop.html").as_uri()]  # fmt: skip
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    noted = re.search(r'data-found="([^"]*)"', page)
    assert noted, "the page's script did not run to its end"
    found = json.loads(html.unescape(noted[1]))
    value = made["layers"]["b_in"]["values"]
    assert found["all"].startswith(f"{columns} of {columns} columns")
    assert found["planted"]["text"].startswith(
        f"site {row:02d}\ncolumn {column}: words <i>{column}</i>\nb: 1.500\n"
    )
    assert found["last"]["text"].startswith(
        f"site {sites - 1:02d}\ncolumn 1: words <i>1</i>\nb: {value[sites - 1][1]:.3f}\n"
    )
    assert [found[at]["hidden"] for at in ("first", "planted", "last")] == [False] * 3
    assert [found[at]["inside"] for at in ("first", "planted", "last")] == [True] * 3
    assert found["gone"]
    assert found["cross"] > 10 > found["nocross"], "the x above a column that varies unusually"
    assert "x: the whole column" in found["planted"]["text"]
    assert found["sorted"].splitlines()[1].startswith(f"column {column}:"), (
        "the most spread column comes first"
    )
    if sites == 30:
        assert found["ring"] > 40 > found["plain"], "the O around a client's cell"
        assert "O: over 2 SD" in found["planted"]["text"]
    else:
        assert found["ring"] < 10, "with four sites the paper's O cannot occur"
