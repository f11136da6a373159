"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data-1").textContent);
  const nodes = data.nodes.map(([name, kind, label, module, note, frames, neighbour], id) =>
    ({ id, name, kind, label, module, note, frames, neighbour }));
  const svg = document.getElementById("graph"), pane = document.getElementById("graph-pane");
  const detail = document.getElementById("graph-detail"), found = document.getElementById("graph-found");
  const SPACE = "http://www.w3.org/2000/svg", H = 30, GAP_X = 18, GAP_Y = 44, MOST = 1500;
  const expanded = new Set();
  let matches = new Set(), chosen = null;

  const paths = new Set();
  for (const node of nodes) {
    const parts = node.module ? node.module.split(".") : [];
    for (let i = 1; i <= parts.length; i++) paths.add(parts.slice(0, i).join("."));
  }
  const counts = new Map();
  for (const node of nodes) {
    const parts = node.module ? node.module.split(".") : [];
    for (let i = 1; i <= parts.length; i++) {
      const path = parts.slice(0, i).join(".");
      counts.set(path, (counts.get(path) || 0) + 1);
    }
  }

  // What stands for a node now: itself, or the outermost module around it that is collapsed. Forward and backward of a
  // module are two boxes, or the graph would be a circle.
  function standsFor(node) {
    const parts = node.module ? node.module.split(".") : [];
    const side = node.kind === "node" || node.kind === "leaf" ? "backward" : "forward";
    for (let i = 1; i <= parts.length; i++) {
      const path = parts.slice(0, i).join(".");
      if (!expanded.has(path)) return { key: "module:" + side + ":" + path, path, side };
    }
    return { key: "node:" + node.id, node };
  }

  // Parameters of all layers have the same few names: theirs begin with the layer's.
  function labelOf(node) {
    const named = node.module && (node.kind === "parameter" || node.kind === "leaf");
    return named ? node.module.split(".").pop() + "." + node.label : node.label;
  }

  function visible() {
    const boxes = new Map(), edges = new Map();
    const keys = nodes.map(node => {
      const { key, path, side } = standsFor(node);
      if (!boxes.has(key)) boxes.set(key, path === undefined
        ? { key, label: labelOf(node), note: node.note, kind: node.kind, node, members: [node] }
        : { key, label: path, note: side, side, kind: "module", path, members: [] });
      if (path !== undefined) boxes.get(key).members.push(node);
      return key;
    });
    for (const [source, target, tensor, words] of data.edges) {
      const a = keys[source], b = keys[target];
      if (a === b) continue;
      const id = a + " " + b;
      if (!edges.has(id)) edges.set(id, { a: boxes.get(a), b: boxes.get(b), tensors: [],
        backward: nodes[source].kind === "node" });
      edges.get(id).tensors.push([data.texts[tensor], data.texts[words]]);
    }
    return { boxes: [...boxes.values()], edges: [...edges.values()] };
  }

  // Layers by the longest way from a source; the order in a layer by the mean place of what comes before and after.
  function place(boxes, edges) {
    const out = new Map(boxes.map(b => [b, []])), into = new Map(boxes.map(b => [b, []]));
    for (const e of edges) { out.get(e.a).push(e.b); into.get(e.b).push(e.a); }
    const state = new Map(), order = [];
    for (const root of boxes) {  // depth first without recursion; an edge back into the way is left out
      if (state.has(root)) continue;
      const way = [[root, 0]];
      state.set(root, 1);
      while (way.length) {
        const top = way[way.length - 1], next = out.get(top[0])[top[1]++];
        if (next === undefined) { state.set(top[0], 2); order.push(top[0]); way.pop(); }
        else if (!state.has(next)) { state.set(next, 1); way.push([next, 0]); }
      }
    }
    order.reverse();
    const rank = new Map(order.map((b, i) => [b, i]));
    for (const b of boxes) b.layer = 0;
    for (const b of order) for (const c of out.get(b))
      if (rank.get(c) > rank.get(b)) c.layer = Math.max(c.layer, b.layer + 1);
    for (let i = order.length - 1; i >= 0; i--) {  // a source stands right above its first user
      const b = order[i];
      if (!into.get(b).length && out.get(b).length)
        b.layer = Math.max(0, Math.min(...out.get(b).map(c => c.layer)) - 1);
    }
    const layers = [];
    for (const b of order) (layers[b.layer] = layers[b.layer] || []).push(b);
    for (let i = 0; i < layers.length; i++) layers[i] = layers[i] || [];
    for (const b of boxes) if (b.kind === "module") b.note = (b.path === data.after ? "" : b.side + ", ") + b.members.length;
    for (const b of boxes) b.width = Math.max(70, 16 + Math.max(widthOf(b.label), 0.84 * widthOf(b.note)));
    const spread = layer => {
      const total = layer.reduce((sum, b) => sum + b.width + GAP_X, -GAP_X);
      let x = -total / 2;
      for (const b of layer) { b.x = x + b.width / 2; x += b.width + GAP_X; }
    };
    layers.forEach(spread);
    const mean = list => list.reduce((sum, b) => sum + b.x, 0) / list.length;
    for (let sweep = 0; sweep < 6; sweep++) {
      const near = sweep % 2 ? out : into;
      for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
        for (const b of layer) b.wish = near.get(b).length ? mean(near.get(b)) : b.x;
        layer.sort((a, b) => a.wish - b.wish);
        let x = -Infinity;
        for (const b of layer) { b.x = Math.max(b.wish, x + b.width / 2); x = b.x + b.width / 2 + GAP_X; }
        const shift = layer.length ? mean(layer) - layer.reduce((sum, b) => sum + b.wish, 0) / layer.length : 0;
        for (const b of layer) b.x -= shift;
      }
    }
    const left = Math.min(...boxes.map(b => b.x - b.width / 2)) - 30;
    for (const b of boxes) { b.x -= left; b.y = 30 + b.layer * (H + GAP_Y); }
  }

  function widthOf(text) {
    let width = 0;
    for (const letter of text) width += letter >= "A" && letter <= "Z" || letter === "_" || letter === "@" ? 8.2 : 6.4;
    return width;
  }

  function make(kind, attributes, parent, text) {
    const element = document.createElementNS(SPACE, kind);
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  }

  function draw() {
    const { boxes, edges } = visible();
    svg.textContent = "";
    if (boxes.length > MOST) {
      found.textContent = boxes.length + " boxes are too many to draw: collapse some modules";
      svg.setAttribute("width", 0);
      return;
    }
    place(boxes, edges);
    const width = Math.max(...boxes.map(b => b.x + b.width / 2)) + 30;
    const height = Math.max(...boxes.map(b => b.y)) + H + 30;
    svg.setAttribute("viewBox", "0 0 " + width + " " + height);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    const lines = make("g", {}, svg), words = make("g", {}, svg);
    for (const e of edges) {
      const y1 = e.a.y + H, y2 = e.b.y, up = y2 < y1;
      const bend = up ? 60 : Math.max(18, (y2 - y1) / 2);
      const side = Math.abs(e.b.layer - e.a.layer) > 1 ? Math.min(60, 10 * Math.abs(e.b.layer - e.a.layer)) : 0;
      const d = "M" + e.a.x + " " + y1 + "C" + (e.a.x + side) + " " + (y1 + bend) + " " + (e.b.x + side) + " " +
        (y2 - bend) + " " + e.b.x + " " + y2;
      e.line = make("path", { class: "edge" + (e.backward ? " backward" : ""), d }, lines);
      make("title", {}, e.line, e.tensors.slice(0, 12).map(t => t.join("  ")).join("\n"));
      const text = e.tensors[0][1] + (e.tensors.length > 1 ? " +" + (e.tensors.length - 1) : "");
      if (e.a.kind === "parameter" || e.b.layer - e.a.layer !== 1) continue;
      const fans = edges.filter(o => o.a === e.a).length > 1;  // then words are told apart at the other end
      make("text", { class: "tensor", x: (fans ? e.b.x : e.a.x) + 5, y: fans ? y2 - 5 : y1 + 13 }, words, text);
    }
    for (const b of boxes) {
      const classes = ["box", b.kind];
      if (b.node && b.node.neighbour) classes.push("neighbour");
      if (b.members.some(n => matches.has(n.id))) classes.push("found");
      if (b.key === chosen) classes.push("chosen");
      const group = make("g", { class: classes.join(" "), transform: "translate(" + (b.x - b.width / 2) + " " + b.y + ")" }, svg);
      make("rect", { width: b.width, height: H, rx: b.kind === "parameter" ? 0 : 6 }, group);
      make("text", { x: b.width / 2, y: b.note ? 13 : 19, "text-anchor": "middle" }, group, b.label);
      if (b.note) make("text", { class: "note", x: b.width / 2, y: 25, "text-anchor": "middle" }, group, b.note);
      group.addEventListener("click", () => b.kind === "module" ? toggle(b.path, b) : show(b, edges));
      b.group = group;
    }
    return { boxes, edges };
  }

  function toggle(path, box) {
    const offset = box.y - pane.scrollTop;
    expanded.add(path);
    const drawn = draw();
    const first = drawn && drawn.boxes.find(b => b.members.some(n => box.members.includes(n)));
    if (first) scrollTo(first, offset);
  }

  function scrollTo(box, offset) {
    pane.scrollTop = box.y - (offset === undefined ? pane.clientHeight / 3 : offset);
    pane.scrollLeft = box.x - pane.clientWidth / 2;
  }

  function element(kind, text) {
    const made = document.createElement(kind);
    made.textContent = text;
    return made;
  }

  function show(box, edges) {
    chosen = box.key;
    for (const other of svg.querySelectorAll(".chosen")) other.classList.remove("chosen");
    box.group.classList.add("chosen");
    const node = box.node;
    detail.textContent = "";
    detail.append(element("h3", node.name), element("p", [node.kind, node.note].filter(Boolean).join(", ")));
    for (const [title, near] of [["in", e => e.b === box], ["out", e => e.a === box]]) {
      const list = document.createElement("ul");
      for (const e of edges.filter(near)) for (const t of e.tensors) list.append(element("li", t.join("  ")));
      if (list.children.length) detail.append(element("p", title), list);
    }
    for (const e of edges) e.line.classList.toggle("near", e.a === box || e.b === box);
    if (node.frames.length) {
      const list = document.createElement("ul");
      for (const frame of node.frames) list.append(element("li", data.frames[frame]));
      detail.append(element("p", "made here"), list);
    }
    if (node.module) {
      const button = element("button", "collapse " + node.module);
      button.addEventListener("click", () => {
        for (const path of [...expanded]) if (path === node.module || path.startsWith(node.module + ".")) expanded.delete(path);
        draw();
      });
      detail.append(button);
    }
  }

  function search(text) {
    const parts = paths.has(text) ? text.split(".") : [];  // a module: it is opened, and what is in it is found
    for (let i = 1; i <= parts.length; i++) expanded.add(parts.slice(0, i).join("."));
    const fits = n => parts.length ? (n.module + ".").startsWith(text + ".")
      : n.name.toLowerCase().includes(text.toLowerCase());
    matches = new Set(text ? nodes.filter(fits).map(n => n.id) : []);
    found.textContent = text ? matches.size + " found" : "";
    if (!parts.length && matches.size && matches.size <= 40) for (const id of matches) {
      const parts = nodes[id].module ? nodes[id].module.split(".") : [];
      for (let i = 1; i <= parts.length; i++) expanded.add(parts.slice(0, i).join("."));
    }
    const drawn = draw();
    const first = drawn && drawn.boxes.find(b => b.members.some(n => matches.has(n.id)));
    if (first) scrollTo(first);
  }

  let timer = 0;
  document.getElementById("graph-search").addEventListener("input", event => {
    clearTimeout(timer);
    timer = setTimeout(() => search(event.target.value.trim()), 150);
  });
  document.getElementById("graph-all").addEventListener("click", () => { paths.forEach(p => expanded.add(p)); draw(); });
  document.getElementById("graph-none").addEventListener("click", () => { expanded.clear(); draw(); });

  // Open outer modules while little is seen, and what the address asks for (#name).
  const byDepth = [...paths].sort((a, b) => a.split(".").length - b.split(".").length || counts.get(a) - counts.get(b));
  for (const path of byDepth.filter(path => path !== data.after)) {
    expanded.add(path);
    if (visible().boxes.length > 60) { expanded.delete(path); break; }
  }
  const wanted = decodeURIComponent(location.hash.slice(1));
  if (wanted) { document.getElementById("graph-search").value = wanted; search(wanted); }
  else {
    const drawn = draw();
    const first = drawn && (drawn.boxes.find(b => b.kind === "module") || drawn.boxes[0]);
    if (first) scrollTo(first);
  }
})();
