// SPDX-License-Identifier: Apache-2.0
// What all pages share: their data, text of numbers, and elements. Text always becomes a text node, so that no name
// can be markup.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);

function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < 4) { bytes /= 1024; ++unit; }
  return bytes.toFixed(unit === 0 || Number.isInteger(bytes) ? 0 : bytes < 10 ? 2 : 1) + ' ' + units[unit];
}
const seconds = t => t < 1e-3 ? (t * 1e6).toFixed(0) + ' µs' : t < 1 ? (t * 1e3).toFixed(1) + ' ms' : t.toFixed(3) + ' s';
const utc = t => new Date(t * 1e3).toISOString().slice(0, 19).replace('T', ' ') + ' UTC';
const count = (n, noun) => `${n} ${noun}${n === 1 ? '' : 's'}`;
const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + ' %' : '-';

/// An element with properties; children are elements or text.
function element(name, properties, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

function svg(name, attributes, parent, text) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent?.append(node);
  return node;
}

/// Fills #id.
const fill_in = (id, ...children) => document.getElementById(id).replaceChildren(...children);

function chip(colour) {
  const node = element('span', {className: 'chip'});
  node.style.background = colour;
  return node;
}

/// Classes of the columns come from `classes`: 'name', 'number' or ''. A cell is text, an element or a list of both.
function table(classes, head, rows) {
  const row = (tag, cells) => element('tr', {}, ...cells.map((cell, i) =>
    element(tag, {className: classes[i]}, ...[cell].flat())));
  return element('table', {}, row('th', head), ...rows.map(cells => row('td', cells)));
}

const tip = element('div', {id: 'tip', role: 'tooltip'});
document.body.append(tip);

/// Rows are [text, value, colour]; the first is a heading.
function show_tip(event, rows) {
  tip.replaceChildren(...rows.map(([text, value, colour], i) => {
    const left = element('span', {}, ...(colour ? [chip(colour)] : []), text);
    return element('div', {className: i === 0 ? 'head' : ''}, left, ...(value ? [element('span', {}, value)] : []));
  }));
  tip.style.display = 'block';
  const right = event.clientX + 18 + tip.offsetWidth > innerWidth;
  tip.style.left = Math.max(4, right ? event.clientX - 14 - tip.offsetWidth : event.clientX + 18) + 'px';
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)) + 'px';
}
const hide_tip = () => { tip.style.display = 'none'; };

/// A round distance of which about `parts` make up `span`.
function round_step(span, parts) {
  const power = 10 ** Math.floor(Math.log10(span / parts));
  return power * [1, 2, 2.5, 5, 10].find(x => x * power * parts >= span * 0.999);
}
