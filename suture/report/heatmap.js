"use strict";
(function () {
  const maps = JSON.parse(document.getElementById("heat").textContent);
  const tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; tip.setAttribute("role", "status"); document.body.appendChild(tip);
  const LOW = [0, 114, 178], HIGH = [213, 94, 0];
  function colour(v, reach) {
    const s = Math.max(-1, Math.min(1, v / reach)), c = s < 0 ? LOW : HIGH, a = Math.pow(Math.abs(s), 0.7);
    return "rgb(" + c.map(function (k) { return Math.round(255 + (k - 255) * a); }).join(",") + ")";
  }
  function spread(map, j) {
    const v = map.values.map(function (r) { return r[j]; }), m = v.reduce(function (a, b) { return a + b; }, 0) / v.length;
    return {mean: m, sd: Math.sqrt(v.reduce(function (a, b) { return a + (b - m) * (b - m); }, 0) / Math.max(1, v.length - 1))};
  }
  for (const box of document.querySelectorAll("[data-heat]")) {
    const map = maps[box.dataset.heat];
    if (!map) continue;
    const cells = box.querySelector("canvas.cells"), names = box.querySelector("canvas.names");
    const wide = box.querySelector(".wide"), count = box.querySelector(".count");
    const stats = map.columns.map(function (_, j) { return spread(map, j); });
    const state = {rows: "study", columns: box.querySelector("select[name=columns]").value, marked: box.querySelector("input.marked").checked, text: ""};
    let rows = [], columns = [], size = 20, head = 150, left = 150;
    function hasCircle(j) { return map.circles.some(function (r) { return r[j]; }); }
    function arrange() {
      rows = map.rows.map(function (_, i) { return i; });
      columns = map.columns.map(function (_, j) { return j; });
      const rowSize = function (i) { return Math.max.apply(null, columns.map(function (j) { return Math.abs(map.values[i][j] - map.neutral); })); };
      const colSize = function (j) { return Math.max.apply(null, map.values.map(function (r) { return Math.abs(r[j] - map.neutral); })); };
      if (state.marked) columns = columns.filter(function (j) { return map.crosses[j] || hasCircle(j); });
      if (state.text) columns = columns.filter(function (j) { return map.columns[j].toLowerCase().includes(state.text); });
      if (state.columns === "size") columns.sort(function (a, b) { return colSize(b) - colSize(a); });
      if (state.columns === "spread") columns.sort(function (a, b) { return stats[b].sd - stats[a].sd; });
      if (state.columns === "name") columns.sort(function (a, b) { return map.columns[a].localeCompare(map.columns[b]); });
      if (state.rows === "size") rows.sort(function (a, b) { return rowSize(b) - rowSize(a); });
      if (state.rows === "name") rows.sort(function (a, b) { return map.rows[a].localeCompare(map.rows[b]); });
      if (state.rows === "marks") { const n = function (i) { return map.circles[i].filter(Boolean).length; }; rows.sort(function (a, b) { return n(b) - n(a); }); }
      draw();
    }
    function prepare(canvas, width, height) {
      // Browsers draw nothing on a canvas wider than 16,384 device pixels: a very wide map is drawn less sharply instead.
      const scale = Math.min(window.devicePixelRatio || 1, 16000 / Math.max(width, height, 1));
      canvas.width = Math.ceil(width * scale); canvas.height = Math.ceil(height * scale);
      canvas.style.width = width + "px"; canvas.style.height = height + "px";
      const g = canvas.getContext("2d"); g.setTransform(scale, 0, 0, scale, 0, 0);
      g.font = "12px Arial, 'Liberation Sans', sans-serif"; g.textBaseline = "middle"; return g;
    }
    function cut(g, text, room) {
      if (g.measureText(text).width <= room) return text;
      let t = text; while (t.length > 1 && g.measureText(t + "…").width > room) t = t.slice(0, -1); return t + "…";
    }
    function draw() {
      const probe = prepare(names, 10, 10);
      left = Math.min(170, 14 + Math.max.apply(null, map.rows.map(function (n) { return probe.measureText(n).width; }).concat([40])));
      head = Math.min(170, 34 + Math.max.apply(null, columns.map(function (j) { return probe.measureText(map.columns[j]).width; }).concat([40])));
      const room = box.clientWidth - left - 4;
      size = Math.max(18, Math.min(38, Math.floor(room / Math.max(1, columns.length))));
      const high = 22, height = head + rows.length * high + 6, width = columns.length * size + 2;
      let g = prepare(names, left, height);
      g.fillStyle = "#1b1b1b"; g.textAlign = "right";
      rows.forEach(function (i, r) { g.fillText(cut(g, map.rows[i], left - 10), left - 8, head + r * high + high / 2); });
      g = prepare(cells, Math.max(width, 10), height);
      columns.forEach(function (j, c) {
        const x = c * size + size / 2;
        g.save(); g.translate(x, head - 20); g.rotate(-Math.PI / 2); g.textAlign = "left"; g.fillStyle = "#1b1b1b";
        g.fillText(cut(g, map.columns[j], head - 26), 0, 0); g.restore();
        if (map.crosses[j]) { g.textAlign = "center"; g.fillStyle = "#1b1b1b"; g.font = "bold 14px Arial, sans-serif"; g.fillText("x", x, head - 9); g.font = "12px Arial, 'Liberation Sans', sans-serif"; }
      });
      rows.forEach(function (i, r) {
        columns.forEach(function (j, c) {
          const x = c * size, y = head + r * high;
          g.fillStyle = colour(map.values[i][j] - map.neutral, map.reach);
          g.fillRect(x + 0.5, y + 0.5, size - 1, high - 1);
          g.strokeStyle = "#e3e6ea"; g.lineWidth = 1; g.strokeRect(x + 0.5, y + 0.5, size - 1, high - 1);
          if (map.circles[i][j]) {
            g.strokeStyle = "#ffffff"; g.lineWidth = 4; g.beginPath(); g.arc(x + size / 2, y + high / 2, 6, 0, 7); g.stroke();
            g.strokeStyle = "#1b1b1b"; g.lineWidth = 2; g.beginPath(); g.arc(x + size / 2, y + high / 2, 6, 0, 7); g.stroke();
          }
        });
      });
      const hidden = width > box.clientWidth - left;
      count.textContent = columns.length + " of " + map.columns.length + " columns" + (hidden ? "; scroll to the right for more" : "");
      box.dataset.drawn = "yes";
    }
    function at(event) {
      const b = cells.getBoundingClientRect(), c = Math.floor((event.clientX - b.left) / size), r = Math.floor((event.clientY - b.top - head) / 22);
      return r >= 0 && r < rows.length && c >= 0 && c < columns.length ? {i: rows[r], j: columns[c]} : null;
    }
    cells.addEventListener("mousemove", function (event) {
      const hit = at(event);
      if (!hit) { tip.hidden = true; return; }
      const s = stats[hit.j], v = map.values[hit.i][hit.j];
      const lines = [map.rows[hit.i], map.columns[hit.j] + (map.about[hit.j] ? ": " + map.about[hit.j] : ""), map.title + ": " + v.toFixed(3), "All hospitals: mean " + s.mean.toFixed(3) + ", SD " + s.sd.toFixed(3)];
      if (map.circles[hit.i][hit.j]) lines.push("O: over 2 SD from the mean");
      if (map.crosses[hit.j]) lines.push("x: the whole column varies unusually");
      tip.textContent = lines.join("\n"); tip.hidden = false;
      const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8), y = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8);
      tip.style.left = x + "px"; tip.style.top = y + "px";
    });
    cells.addEventListener("mouseleave", function () { tip.hidden = true; });
    for (const control of box.querySelectorAll("select")) control.addEventListener("change", function () { state[control.name] = control.value; arrange(); });
    box.querySelector("input.marked").addEventListener("change", function (e) { state.marked = e.target.checked; arrange(); });
    box.querySelector("input.find").addEventListener("input", function (e) { state.text = e.target.value.toLowerCase(); arrange(); });
    const digits = function (v) { return v.toPrecision(2); };
    box.querySelector(".least").textContent = digits(map.neutral - map.reach) + " or less";
    box.querySelector(".most").textContent = digits(map.neutral + map.reach) + " or more";
    let waiting = 0;
    window.addEventListener("resize", function () { window.clearTimeout(waiting); waiting = window.setTimeout(draw, 120); });
    arrange();
  }
})();
