// SPDX-License-Identifier: Apache-2.0
// The check page: findings, a mesh by node type, histograms of fields and degrees, and the model's columns.
'use strict';
const {check, mesh} = data;
const kTypeColours = 8;
const type_colour = type => `var(--type-${type % kTypeColours})`;
const round = value => +value.toPrecision(4);

function write_text() {
  const tile = (value, caption, alarm) => element('div', {className: alarm ? 'tile alarm' : 'tile'},
    element('b', {}, value), element('span', {}, caption));
  const range = ({min, max}) => min === max ? `${min}` : `${min} to ${max}`;
  const of = severity => check.findings.filter(finding => finding.severity === severity).length;
  fill_in('source', `${check.path}, ${size(check.bytes)}, from ${check.source}`);
  fill_in('tiles',
    tile(String(check.trajectories), `trajectories on ${check.meshes} meshes in ${check.dim}-D`),
    tile(String(check.frames), check.dt > 0 ? `frames, ${check.dt} s apart` : 'frames'),
    tile(range(check.nodes), 'nodes of a mesh'),
    tile(range(check.edges), 'directed edges of a mesh'),
    tile(String(of('error')), 'errors', of('error') > 0),
    tile(String(of('warning')), `warnings, and ${count(of('note'), 'note')}`));
  fill_in('findings', check.findings.length === 0 ? element('p', {}, 'Nothing doubtful was found.') :
    table(['', 'name', '', '', ''], ['', 'where', 'what', 'why it matters', 'what to do'],
      check.findings.map(({severity, place, what, why, remedy}) =>
        [element('span', {className: `severity ${severity}`}, severity), place, what, why, remedy])));
  write_use();
}

function write_use() {
  if (!check.use) { document.getElementById('use').remove(); return; }
  const {use} = check;
  const guess = use.guessed ? ', as meshgrad init would configure it' : '';
  const memory = use.memory ? ` A step of batch ${use.memory.batch} takes ${size(use.memory.step_bytes)} of ` +
    `${size(use.memory.usable_bytes)} on ${use.memory.device}.` : '';
  fill_in('task', `Task ${use.task}${guess}: ${count(use.train_samples, 'sample')} to train on, ` +
    `${use.valid_samples} to validate.${memory}`);
  const rows = [['nodes in', use.node_inputs], ['edges in', use.edge_inputs], ['outputs', use.outputs]]
    .flatMap(([where, groups]) => groups.map(({name, width}) => [where, name, String(width)]));
  fill_in('columns', table(['', 'name', 'number'], ['', 'values', 'columns'], rows));
}

/// Bars of equal width; `label(i)` is the text of the tip.
function bars(counts, low, high, label, integers) {
  const width = 380, height = 130, left = 4, right = width - 4, top = 8, bottom = height - 22;
  const most = Math.max(1, ...counts), wide = (right - left) / counts.length;
  const plot = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'histogram'});
  counts.forEach((value, i) => {
    const tall = value > 0 ? Math.max(1, (bottom - top) * value / most) : 0;
    svg('rect', {x: left + i * wide, y: bottom - tall, width: Math.max(wide - 1, 0.5), height: tall,
                 fill: 'var(--bar)'}, plot);
    const hit = svg('rect', {x: left + i * wide, y: top, width: wide, height: bottom - top, fill: 'transparent'}, plot);
    hit.onmousemove = event => show_tip(event, [[label(i), value.toLocaleString('en')]]);
    hit.onmouseleave = hide_tip;
  });
  svg('line', {x1: left, x2: right, y1: bottom, y2: bottom, stroke: 'var(--line)'}, plot);
  const inset = integers ? wide / 2 : 0;
  svg('text', {x: left + inset, y: height - 6, 'text-anchor': integers ? 'middle' : 'start'}, plot, round(low));
  svg('text', {x: right - inset, y: height - 6, 'text-anchor': integers ? 'middle' : 'end'}, plot, round(high));
  return plot;
}

function draw_fields() {
  const cards = [];
  for (const field of check.fields) {
    field.values.forEach((values, c) => {
      const {minimum, maximum, mean, change_per_frame, histogram} = values;
      const unit = field.unit ? ' ' + field.unit : '';
      const name = field.components === 1 ? field.name : `${field.name}[${c}]`;
      const change = change_per_frame > 0 ? `, change per frame ${round(change_per_frame)}${unit}` : '';
      const about = field.dtype === 'f32' ? `, mean ${round(mean)}${unit}${change}` : '';
      const part = (maximum - minimum) / Math.max(histogram.length, 1);
      const label = i => `${round(minimum + i * part)} to ${round(minimum + (i + 1) * part)}${unit}`;
      cards.push(element('div', {}, element('h3', {}, `${name} on ${field.on}s`),
        element('p', {}, `${round(minimum)} to ${round(maximum)}${unit}${about}`),
        ...(histogram.length > 0 ? [bars(histogram, minimum, maximum, label, false)] : [])));
    });
  }
  fill_in('fields', ...cards);
  const {min, max} = check.degree;
  fill_in('degrees', bars(check.degrees.slice(min, max + 1), min, max, i => count(min + i, 'edge'), true));
}

function draw_mesh() {
  const canvas = document.getElementById('mesh'), style = getComputedStyle(document.documentElement);
  const of = name => style.getPropertyValue(name).trim(), ratio = devicePixelRatio || 1;
  const width = Math.max(canvas.parentElement.clientWidth - 36, 280);
  const height = Math.min(620, Math.max(120, width * mesh.height / Math.max(mesh.width, 1)));
  const scale = Math.min((width - 12) / Math.max(mesh.width, 1), (height - 12) / Math.max(mesh.height, 1));
  canvas.style.width = width + 'px';
  canvas.style.height = height + 'px';
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const ink = canvas.getContext('2d');
  ink.scale(ratio, ratio);
  const x = node => 6 + mesh.x[node] * scale, y = node => height - 6 - mesh.y[node] * scale;
  ink.strokeStyle = of('--muted');
  ink.globalAlpha = 0.45;
  ink.lineWidth = 0.7;
  ink.beginPath();
  for (let i = 0; i < mesh.edges.length; i += 2) {
    ink.moveTo(x(mesh.edges[i]), y(mesh.edges[i]));
    ink.lineTo(x(mesh.edges[i + 1]), y(mesh.edges[i + 1]));
  }
  ink.stroke();
  ink.globalAlpha = 1;
  const radius = Math.max(1, Math.min(4, Math.sqrt(width * height / mesh.x.length) / 6));
  const colours = Array.from({length: kTypeColours}, (_, i) => of(`--type-${i}`));
  mesh.types.forEach((type, node) => {
    ink.fillStyle = colours[type % kTypeColours];
    ink.beginPath();
    ink.arc(x(node), y(node), type === 0 ? 0.7 * radius : radius, 0, 7);
    ink.fill();
  });
}

function write_types() {
  const counts = new Map();
  for (const type of mesh.types) counts.set(type, (counts.get(type) ?? 0) + 1);
  fill_in('types', ...[...counts].sort((a, b) => a[0] - b[0]).map(([type, nodes]) =>
    element('li', {}, chip(type_colour(type)), `type ${type}: ${count(nodes, 'node')}`)));
  const part = mesh.x.length < mesh.nodes ? ` ${mesh.x.length} of its ${mesh.nodes} nodes are drawn.` : '';
  fill_in('mesh-name', `${mesh.name}.${part}${check.dim === 3 ? ' Seen along z.' : ''}`);
}

write_text();
write_types();
draw_fields();
draw_mesh();
addEventListener('resize', draw_mesh);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw_mesh);
