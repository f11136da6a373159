"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data-1").textContent);
  const $ = (id) => document.getElementById(id);
  const { rects, cells, mapped, kinds } = data;
  const count = rects.y.length;
  const map = $("map"), blocks = $("blocks"), tip = $("tip");
  const left = 66, bottom = 26;
  const lanes = Math.min(2, Math.max(0, ...data.spans.map((span) => span[5] + 1))); // of regions, above the map
  let axis = data.micros > 0 ? "t" : "i";
  let view = null; // [x0, x1, y0, y1]: what the map shows
  let moment = 0; // on the axis
  let chosen = -1;
  const hidden = new Set();
  let matches = new Uint8Array(count).fill(1);
  let palette = {};

  // ---- numbers for people
  const bytes = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    for (; Math.abs(n) >= 1024 && unit < 4; unit++) n /= 1024;
    return `${unit ? n.toFixed(n < 10 ? 2 : 1) : n} ${units[unit]}`;
  };
  const time = (us) => (us >= 1e6 ? `${(us / 1e6).toFixed(3)} s` : us >= 1e3 ? `${(us / 1e3).toFixed(2)} ms` : `${us.toFixed(1)} µs`);
  const place = (x) => (axis === "t" ? time(x) : `event ${Math.round(x).toLocaleString("en")}`);
  const ticks = (low, high, wanted) => {
    const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
    const result = [];
    for (let t = Math.ceil(low / step) * step; t <= high; t += step) result.push(t);
    return result;
  };

  // ---- the axis: time or events
  const end = () => (axis === "t" ? data.micros : data.numEvents) || 1;
  const starts = () => (axis === "t" ? rects.t0 : rects.i0);
  const stops = () => (axis === "t" ? rects.t1 : rects.i1);
  const live = (r) => starts()[r] <= moment && (moment < stops()[r] || rects.i1[r] === data.numEvents);
  const nearest = (x) => { // the sample of the curve at or before x
    const xs = axis === "t" ? data.curve.t : data.curve.i;
    let low = 0, high = xs.length - 1;
    while (low < high) { const m = (low + high + 1) >> 1; if (xs[m] <= x) low = m; else high = m - 1; }
    return low;
  };
  const all = () => { view = [0, end(), 0, data.total]; };

  // ---- drawing
  const setUp = (canvas, height) => {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = "11.5px " + getComputedStyle(document.body).fontFamily;
    return [c, width, height];
  };
  const readPalette = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "panel", "ink", "muted", "line", "s1", "s2", "s3", "s4", "s5", "s6"]) {
      palette[name] = style.getPropertyValue("--" + name).trim();
    }
  };
  const color = (kind) => palette["s" + kinds[kind][1]];
  const shown = (r) => matches[r] && !hidden.has(rects.kind[r]);
  const frame = () => {
    const lane = lanes ? lanes * 15 + 2 : 0;
    return { x: left, y: lane, w: map.clientWidth - left - 1, h: map.clientHeight - bottom - lane };
  };

  const drawMap = () => {
    const [c] = setUp(map, map.clientHeight), f = frame();
    const [x0, x1, y0, y1] = view;
    const sx = f.w / (x1 - x0), sy = f.h / (y1 - y0);
    const px = (x) => f.x + (x - x0) * sx, py = (y) => f.y + f.h - (y - y0) * sy;
    // axes
    c.fillStyle = palette.muted;
    c.textBaseline = "middle";
    c.textAlign = "right";
    const unit = [1, 1024, 2 ** 20, 2 ** 30, 2 ** 40].filter((u) => y1 - y0 >= 2 * u).pop() || 1;
    for (const t of ticks(y0 / unit, y1 / unit, 6)) {
      const y = Math.round(py(t * unit)) + 0.5;
      c.strokeStyle = palette.line;
      c.beginPath(); c.moveTo(f.x, y); c.lineTo(f.x + f.w, y); c.stroke();
      c.fillText(bytes(t * unit).replace(/\.0+ /, " "), f.x - 8, y);
    }
    c.textAlign = "center";
    c.textBaseline = "top";
    const scale = axis === "i" ? [1, ""] : x1 - x0 >= 2e6 ? [1e6, " s"] : x1 - x0 >= 2e3 ? [1e3, " ms"] : [1, " µs"];
    for (const t of ticks(x0 / scale[0], x1 / scale[0], Math.max(2, f.w / 130))) {
      const x = px(t * scale[0]);
      c.fillRect(Math.round(x), f.y + f.h, 1, 4);
      c.fillText(+t.toPrecision(6) + scale[1], Math.min(x, f.x + f.w - 22), f.y + f.h + 8);
    }
    c.save();
    c.beginPath(); c.rect(f.x, 0, f.w, f.y + f.h); c.clip();
    // regions of the program
    c.textAlign = "left";
    c.textBaseline = "middle";
    for (const [i0, i1, t0, t1, name, depth] of data.spans) {
      const from = Math.max(px(axis === "t" ? t0 : i0), f.x), to = Math.min(px(axis === "t" ? t1 : i1), f.x + f.w);
      if (to < from) continue;
      if (depth >= lanes) continue;
      c.globalAlpha = depth ? 0.6 : 1;
      c.fillStyle = i0 === i1 ? palette.s2 : palette.line;
      c.fillRect(from, depth * 15, Math.max(to - from - 1, 1), 13);
      c.globalAlpha = 1;
      c.fillStyle = palette.muted;
      if (c.measureText(name).width < to - from - 8) c.fillText(name, from + 5, depth * 15 + 7);
    }
    c.beginPath(); c.rect(f.x, f.y, f.w, f.h); c.clip();
    // memory behind addresses
    c.fillStyle = palette.line;
    c.globalAlpha = 0.6;
    for (let r = 0; r < mapped.y.length; r++) {
      const a = px((axis === "t" ? mapped.t0 : mapped.i0)[r]), b = px((axis === "t" ? mapped.t1 : mapped.i1)[r]);
      c.fillRect(a, py(mapped.y[r] + mapped.h[r]), Math.max(b - a, 0.5), mapped.h[r] * sy);
    }
    // what has no rectangle of its own
    const edges = axis === "t" ? data.columnTimes : data.columns, step = data.total / 50;
    c.fillStyle = palette.s6;
    for (const [column, row, level] of cells) {
      c.globalAlpha = level / 255;
      c.fillRect(px(edges[column]), py((row + 1) * step), (edges[column + 1] - edges[column]) * sx + 0.3, step * sy + 0.3);
    }
    // allocations, the largest first
    const a0 = starts(), a1 = stops();
    for (let r = count - 1; r >= 0; r--) {
      if (a1[r] < x0 || a0[r] > x1 || rects.y[r] > y1 || rects.y[r] + rects.h[r] < y0) continue;
      const x = px(a0[r]), y = py(rects.y[r] + rects.h[r]);
      const w = Math.max(px(a1[r]) - x, 0.7), h = Math.max(rects.h[r] * sy, 0.5);
      c.globalAlpha = shown(r) ? 0.88 : 0.09;
      c.fillStyle = color(rects.kind[r]);
      c.fillRect(x, y, w, h > 4 ? h - 1 : h);
      if (rects.freed[r] >= 0 && shown(r)) { // freed, but a stream may still use it
        const at = axis === "t" ? a1[r] : rects.freed[r];
        c.globalAlpha = 0.5;
        c.fillStyle = palette.paper;
        c.fillRect(px(at), y, px(a1[r]) - px(at), h);
      }
      if (shown(r) && h > 13 && w > 50) {
        const from = Math.max(x, f.x) + 5, room = Math.min(x + w, f.x + f.w) - from - 4;
        const text = data.names[rects.name[r]] || bytes(rects.h[r]);
        if (c.measureText(text).width < room) {
          c.globalAlpha = 1;
          c.fillStyle = palette.panel;
          c.fillText(text, from, y + h / 2);
        }
      }
    }
    c.globalAlpha = 1;
    if (chosen >= 0) {
      c.strokeStyle = palette.ink;
      c.lineWidth = 1.5;
      const x = px(a0[chosen]), y = py(rects.y[chosen] + rects.h[chosen]);
      c.strokeRect(x, y, Math.max(px(a1[chosen]) - x, 1), Math.max(rects.h[chosen] * sy, 1));
    }
    c.fillStyle = palette.ink;
    c.fillRect(px(moment) - 0.5, f.y, 1, f.h);
    c.restore();
  };

  const drawBlocks = () => {
    const rows = Math.max(1, Math.min(18, Math.round(Math.sqrt(count) / 3) + 4)), height = 17;
    blocks.style.height = rows * height + "px";
    const [c, width] = setUp(blocks, rows * height);
    const per = data.total / rows;
    const fill = (y, h, style, alpha, gap) => {
      c.fillStyle = style;
      c.globalAlpha = alpha;
      for (let row = Math.floor(y / per); row < rows && row * per < y + h; row++) {
        const a = Math.max(y - row * per, 0) / per, b = Math.min(y + h - row * per, per) / per;
        const w = (b - a) * width;
        c.fillRect(a * width, row * height, w > 3 ? w - gap : Math.max(w, 0.5), height - 3);
      }
    };
    fill(0, data.total, palette.line, 0.35, 0);
    for (let r = 0; r < mapped.y.length; r++) {
      if ((axis === "t" ? mapped.t0 : mapped.i0)[r] <= moment && moment <= (axis === "t" ? mapped.t1 : mapped.i1)[r]) {
        fill(mapped.y[r], mapped.h[r], palette.line, 1, 0);
      }
    }
    const edges = axis === "t" ? data.columnTimes : data.columns;
    for (const [column, row, level] of cells) {
      if (edges[column] <= moment && moment < edges[column + 1]) {
        fill((row * data.total) / 50, data.total / 50, palette.s6, level / 255, 0);
      }
    }
    for (let r = count - 1; r >= 0; r--) {
      if (live(r)) fill(rects.y[r], rects.h[r], color(rects.kind[r]), shown(r) ? 0.9 : 0.12, 0.8);
    }
    c.globalAlpha = 1;
  };

  // ---- lists
  const element = (tag, text, parent) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };
  const frameText = (f) => `${f[0]}:${f[1]} ${f[2]}`;
  const short = (stack) => {
    const levels = data.stacks[stack].map((i) => data.frames[i]);
    const f = levels.find((level) => !/\/torch\/|torch::/.test(level[0] + level[2])) || levels[0];
    return f ? `${f[0].split("/").pop()}:${f[1]} ${f[2]}` : "";
  };
  const framesList = (stack, parent) => {
    const list = element("ol", undefined, parent);
    list.className = "frames";
    for (const i of data.stacks[stack]) element("li", frameText(data.frames[i]), list);
  };
  const item = (parent, kind, size, text) => {
    const line = element("div", undefined, parent);
    line.className = "item";
    element("i", undefined, line).style.background = color(kind);
    element("b", bytes(size), line);
    element("span", text, line);
    return line;
  };
  const describe = (r) => data.names[rects.name[r]] || short(rects.stack[r]) || kinds[rects.kind[r]][0];
  const drawLists = () => {
    const rows = [];
    let sum = 0;
    for (let r = 0; r < count; r++) if (live(r) && shown(r)) { rows.push(r); sum += rects.h[r]; }
    const sample = nearest(moment);
    $("now").textContent =
      `${place(moment)} · ${bytes(data.curve.live[sample] || 0)} live` +
      (rows.length < count ? ` · ${rows.length.toLocaleString("en")} shown, ${bytes(sum)}` : "");
    rows.sort((a, b) => rects.h[b] - rects.h[a]);
    const largest = $("largest");
    largest.replaceChildren();
    for (const r of rows.slice(0, 12)) {
      const line = item(largest, rects.kind[r], rects.h[r], describe(r));
      line.style.cursor = "pointer";
      line.addEventListener("click", () => choose(r));
    }
    const groups = new Map();
    for (const r of rows) {
      const key = rects.stack[r] || "n" + rects.name[r];
      const group = groups.get(key) || { size: 0, number: 0, r };
      group.size += rects.h[r];
      group.number++;
      groups.set(key, group);
    }
    const stacks = $("stacks");
    stacks.replaceChildren();
    for (const g of [...groups.values()].sort((a, b) => b.size - a.size).slice(0, 12)) {
      const details = element("details", undefined, stacks), summary = element("summary", undefined, details);
      const stack = rects.stack[g.r];
      item(summary, rects.kind[g.r], g.size, `${g.number} × ${stack ? short(stack) : describe(g.r)}`);
      if (stack) framesList(stack, details);
    }
  };
  const choose = (r) => {
    chosen = r;
    const box = $("chosen");
    box.replaceChildren();
    if (r < 0) box.textContent = "Click one in the map.";
    else {
      item(box, rects.kind[r], rects.h[r], describe(r));
      const from = rects.before[r] ? "before the recording" : `${time(rects.t0[r])} (event ${rects.i0[r]})`;
      const to = rects.i1[r] === data.numEvents ? "the end" : `${time(rects.t1[r])} (event ${rects.i1[r]})`;
      element("p", `${kinds[rects.kind[r]][0]}, ${rects.h[r].toLocaleString("en")} bytes at 0x${rects.addr[r].toString(16)}, from ${from} to ${to}`, box);
      if (rects.stack[r]) framesList(rects.stack[r], box);
    }
    later(drawMap);
  };

  // ---- one redraw per frame
  const queue = new Set();
  const later = (...draws) => {
    if (!queue.size) requestAnimationFrame(() => { const todo = [...queue]; queue.clear(); todo.forEach((draw) => draw()); });
    draws.forEach((draw) => queue.add(draw));
  };
  const redraw = () => later(drawMap, drawBlocks, drawLists);
  const setMoment = (x) => {
    moment = Math.min(Math.max(x, 0), axis === "t" ? data.micros : Math.max(0, data.numEvents - 1));
    $("moment").value = Math.round((10000 * moment) / end());
    redraw();
  };

  // ---- what the reader does
  const applyFilter = () => {
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean), least = +$("least").value;
    const texts = data.names.map((n) => n.toLowerCase());
    const stackTexts = data.stacks.map((s) => s.map((i) => frameText(data.frames[i])).join("\n").toLowerCase());
    for (let r = 0; r < count; r++) {
      const text = texts[rects.name[r]] + "\n" + stackTexts[rects.stack[r]] + "\n" + kinds[rects.kind[r]][0];
      matches[r] = rects.h[r] >= least && words.every((word) => text.includes(word)) ? 1 : 0;
    }
    redraw();
  };
  const zoom = (factor, cx, cy) => {
    const limit = [0, end(), 0, data.total];
    for (const [low, high, at] of [[0, 1, cx], [2, 3, cy]]) {
      if (at === null) continue;
      const middle = view[low] + at * (view[high] - view[low]), size = Math.min((view[high] - view[low]) * factor, limit[high]);
      view[low] = Math.min(Math.max(middle - at * size, 0), limit[high] - size);
      view[high] = view[low] + size;
    }
    later(drawMap);
  };
  const pan = (dx, dy) => {
    const limit = [0, end(), 0, data.total];
    for (const [low, high, d] of [[0, 1, dx], [2, 3, dy]]) {
      const size = view[high] - view[low];
      view[low] = Math.min(Math.max(view[low] + d * size, 0), limit[high] - size);
      view[high] = view[low] + size;
    }
    later(drawMap);
  };
  const inside = (event) => {
    const box = map.getBoundingClientRect(), f = frame();
    return [(event.clientX - box.left - f.x) / f.w, 1 - (event.clientY - box.top - f.y) / f.h];
  };
  const under = (event) => {
    const [u, v] = inside(event);
    if (u < 0 || u > 1 || v < 0 || v > 1) return -1;
    const x = view[0] + u * (view[1] - view[0]), y = view[2] + v * (view[3] - view[2]);
    const near = (2 * (view[1] - view[0])) / frame().w, a0 = starts(), a1 = stops();
    for (let r = 0; r < count; r++) { // the smallest first
      if (a0[r] - near <= x && x < a1[r] + near && rects.y[r] <= y && y < rects.y[r] + rects.h[r] && shown(r)) return r;
    }
    return -1;
  };
  let drag = null;
  map.addEventListener("pointerdown", (event) => {
    drag = [event.clientX, event.clientY, false];
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointermove", (event) => {
    if (drag) {
      const dx = event.clientX - drag[0], dy = event.clientY - drag[1], f = frame();
      if (drag[2] || Math.hypot(dx, dy) > 4) {
        pan(-dx / f.w, dy / f.h);
        drag = [event.clientX, event.clientY, true];
        tip.hidden = true;
      }
      return;
    }
    const r = under(event);
    tip.hidden = r < 0;
    if (r < 0) return;
    tip.replaceChildren();
    element("b", describe(r), tip);
    element("div", `${bytes(rects.h[r])} · ${kinds[rects.kind[r]][0]}`, tip);
    if (rects.stack[r]) element("div", short(rects.stack[r]), tip);
    tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + "px";
  });
  map.addEventListener("pointerup", (event) => {
    if (drag && !drag[2]) {
      const [u] = inside(event);
      setMoment(view[0] + Math.min(Math.max(u, 0), 1) * (view[1] - view[0]));
      choose(under(event));
    }
    drag = null;
  });
  map.addEventListener("pointerleave", () => { tip.hidden = true; });
  map.addEventListener("dblclick", () => { all(); redraw(); });
  map.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== map) return; // the page scrolls
    event.preventDefault();
    const [u, v] = inside(event), factor = event.deltaY > 0 ? 1.25 : 0.8;
    zoom(factor, Math.min(Math.max(u, 0), 1), event.shiftKey ? Math.min(Math.max(v, 0), 1) : null);
  }, { passive: false });
  map.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };
    if (moves[event.key]) pan(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") zoom(0.7, 0.5, event.shiftKey ? 0.5 : null);
    else if (event.key === "-") zoom(1.4, 0.5, null);
    else if (event.key === "0") { all(); redraw(); }
    else return;
    event.preventDefault();
  });
  $("in").addEventListener("click", () => zoom(0.6, 0.5, 0.5));
  $("out").addEventListener("click", () => zoom(1 / 0.6, 0.5, 0.5));
  $("whole").addEventListener("click", () => { all(); redraw(); });
  $("filter").addEventListener("input", applyFilter);
  $("least").addEventListener("change", applyFilter);
  $("moment").addEventListener("input", () => setMoment((+$("moment").value / 10000) * end()));
  $("axis").addEventListener("change", () => {
    const sample = nearest(moment), before = axis;
    axis = $("axis").value;
    if (axis !== before) { all(); setMoment((axis === "t" ? data.curve.t : data.curve.i)[sample] || 0); }
  });
  kinds.forEach(([name], kind) => {
    const button = element("button", undefined, $("kinds"));
    button.type = "button";
    element("i", undefined, button).dataset.kind = kind;
    element("span", name, button);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      if (hidden.has(kind)) hidden.delete(kind); else hidden.add(kind);
      button.setAttribute("aria-pressed", String(!hidden.has(kind)));
      redraw();
    });
  });
  const paint = () => {
    readPalette();
    for (const swatch of document.querySelectorAll(".chips i")) swatch.style.background = color(+swatch.dataset.kind);
    redraw();
  };
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  new ResizeObserver(() => redraw()).observe(map);

  $("axis").value = axis;
  $("legend").textContent =
    "Up: addresses, without the ranges that nothing lay in. Click: choose an allocation and the moment. Drag: move; Ctrl and " +
    "wheel or + and −: zoom (with Shift the addresses too); double click: everything." +
    (data.numOthers ? ` Grey: ${data.numOthers.toLocaleString("en")} smaller or shorter allocations, as shares of their area.` : "");
  all();
  readPalette();
  const atPeak = data.curve.live.indexOf(Math.max(...data.curve.live));
  setMoment(axis === "t" ? data.curve.t[Math.max(0, atPeak)] || 0 : data.peak);
  paint();
})();
