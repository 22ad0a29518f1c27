// SPDX-License-Identifier: Apache-2.0
// Draws a field on a mesh from its data: three panels, prediction and truth on the truth's range, and the error from zero.
'use strict';

/// u16, little-endian as every browser has it.
function numbers_of(text) {
  const raw = atob(text);
  return new Uint16Array(Uint8Array.from(raw, c => c.charCodeAt(0)).buffer);
}
/// NaN where a value is not finite.
const values_of = ({low, high, values}) =>
  Float64Array.from(numbers_of(values), at => at === 65535 ? NaN : low + (high - low) * at / 65534);

/// Coordinates from 0 to 1, with what json() of flat_mesh.h has.
function mesh_of(json) {
  const place = text => Float64Array.from(numbers_of(text), at => at / 65535);
  return {...json, x: place(json.x), y: place(json.y), triangles: numbers_of(json.triangles)};
}

/// The value at each pixel of width x height; undefined (here: Infinity) outside of the mesh.
function raster(mesh, values, width, height) {
  const pixels = new Float64Array(width * height).fill(Infinity);
  const x = mesh.x.map(at => at * width), y = mesh.y.map(at => at * height);
  for (let t = 0; t < mesh.triangles.length; t += 3) {
    const a = mesh.triangles[t], b = mesh.triangles[t + 1], c = mesh.triangles[t + 2];
    const area = (x[b] - x[a]) * (y[c] - y[a]) - (x[c] - x[a]) * (y[b] - y[a]);
    if (area === 0) continue;
    const last_x = Math.min(width - 1, Math.ceil(Math.max(x[a], x[b], x[c])));
    const last_y = Math.min(height - 1, Math.ceil(Math.max(y[a], y[b], y[c])));
    for (let j = Math.max(0, Math.floor(Math.min(y[a], y[b], y[c])) - 1); j <= last_y; ++j) {
      for (let i = Math.max(0, Math.floor(Math.min(x[a], x[b], x[c])) - 1); i <= last_x; ++i) {
        const u = ((i + 0.5 - x[a]) * (y[c] - y[a]) - (x[c] - x[a]) * (j + 0.5 - y[a])) / area;
        const v = ((x[b] - x[a]) * (j + 0.5 - y[a]) - (i + 0.5 - x[a]) * (y[b] - y[a])) / area;
        if (u < -1e-9 || v < -1e-9 || u + v > 1 + 1e-9) continue;  // closes the seams between neighbours
        pixels[j * width + i] = values[a] + u * (values[b] - values[a]) + v * (values[c] - values[a]);
      }
    }
  }
  if (mesh.triangles.length > 0) return pixels;
  const radius = Math.min(20, Math.max(2, 0.55 * Math.sqrt(width * height / x.length)));
  values.forEach((value, node) => {
    for (let j = Math.max(0, Math.floor(y[node] - radius)); j <= Math.min(height - 1, y[node] + radius); ++j)
      for (let i = Math.max(0, Math.floor(x[node] - radius)); i <= Math.min(width - 1, x[node] + radius); ++i)
        if (Math.hypot(i + 0.5 - x[node], j + 0.5 - y[node]) <= radius) pixels[j * width + i] = value;
  });
  return pixels;
}

/// 256 colours of a map, from 0 to 1.
function palette_of(map) {
  const stops = data.colours[map];
  return Array.from({length: 256}, (_, i) => {
    const at = i / 255 * (stops.length - 1), below = Math.min(Math.floor(at), stops.length - 2);
    return stops[below].map((from, k) => from + (stops[below + 1][k] - from) * (at - below));
  });
}
const palettes = {viridis: palette_of('viridis'), magma: palette_of('magma')};
const grey = [150, 150, 150];  // where a value is not finite

/// A canvas with its title, colour bar and the value under the pointer.
function panel(mesh, values, {title, map, low, high, unit}) {
  const most = 480, width = Math.round(Math.min(800, most / mesh.aspect)), height = Math.max(1, Math.round(width * mesh.aspect));
  const canvas = element('canvas', {width, height, ariaLabel: title});
  const pixels = raster(mesh, values, width, height), context = canvas.getContext('2d');
  const image = context.createImageData(width, height), span = high - low || 1;
  for (let i = 0; i < pixels.length; ++i) {
    if (pixels[i] === Infinity) continue;
    const part = Math.round(255 * Math.min(1, Math.max(0, (pixels[i] - low) / span)));
    const colour = Number.isNaN(part) ? grey : palettes[map][part];
    for (let k = 0; k < 3; ++k) image.data[4 * i + k] = colour[k];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  canvas.onmousemove = event => {
    const {left, top, width: shown} = canvas.getBoundingClientRect();
    const [i, j] = [event.clientX - left, event.clientY - top].map(at => Math.floor(at * width / shown));
    const value = pixels[Math.min(height - 1, Math.max(0, j)) * width + Math.min(width - 1, Math.max(0, i))];
    if (value === Infinity) return hide_tip();
    show_tip(event, [[title], [`${Number.isNaN(value) ? 'not finite' : short(value)} ${unit}`]]);
  };
  canvas.onmouseleave = hide_tip;
  const bar = element('span', {className: 'bar'});
  bar.style.background = `linear-gradient(90deg, ${data.colours[map].map(colour => `rgb(${colour.join()})`).join()})`;
  const legend = element('p', {className: 'panel'}, title, element('span', {}, short(low), bar, `${short(high)} ${unit}`));
  return [legend, canvas];
}

/// The panels of a picture on its mesh.
function field_panels(picture, mesh) {
  const {low, high, unit, rmse, largest} = picture;
  const range = {map: 'viridis', low, high, unit};
  return [['prediction', range], ['truth', range],
          ['error', {map: 'magma', low: 0, high: largest, unit, title: `error: RMSE ${short(rmse)}, largest ${short(largest)}`}]]
    .flatMap(([key, options]) => panel(mesh, values_of(picture[key]), {title: key, ...options}));
}
