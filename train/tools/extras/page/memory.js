// SPDX-License-Identifier: Apache-2.0
// The memory page: tiles and tables, the curve over time, and the map of addresses at the peak.
'use strict';
const colour = tag => `var(--tag-${tag})`;
const tag_cell = tag => [chip(colour(tag)), data.tags[tag]];

/// What the page covers, in a sentence or two.
function coverage() {
  const {events, dropped, end} = data.history;
  if (events === 0) return 'No history was recorded: the page shows the present only.';
  const duration = (data.samples.at(-1)[1] / 1e6).toFixed(3);
  const text = `${count(events, 'event')} over ${duration} s, up to ${utc(end)}.`;
  if (dropped === 0) return text;
  const were = dropped === 1 ? 'was' : 'were';
  return `${text} ${count(dropped, 'earlier event')} ${were} dropped; their effect is reconstructed from the present.`;
}

function write_text() {
  const {stats, peak, owners} = data;
  const tile = (value, caption, alarm) => element('div', {className: alarm ? 'tile alarm' : 'tile'},
    element('b', {}, value), element('span', {}, caption));
  const most_reserved = data.samples.reduce((most, sample) => Math.max(most, sample[2]), 0);
  fill_in('coverage', coverage());
  fill_in('tiles',
    tile(size(peak.bytes), 'requested bytes in use at the peak'),
    tile(size(most_reserved), 'reserved, at most'),
    tile(peak.bytes > 0 ? (most_reserved / peak.bytes).toFixed(4) : '-', 'most reserved / most in use'),
    tile((100 * stats.external_fragmentation).toFixed(1) + ' %',
         'external fragmentation now: free bytes outside the largest free block'),
    tile(String(stats.out_of_memory), 'times out of memory', stats.out_of_memory > 0));
  for (const legend of document.querySelectorAll('.legend'))
    legend.prepend(...data.shown.map(tag => element('li', {}, ...tag_cell(tag))));
  fill_in('layout', `${count(peak.blocks, 'block')} in ${count(peak.ranges, 'range')}, ${size(peak.reserved)} reserved.`);
  fill_in('owners',
    table(['name', '', 'number', 'number', 'number'], ['name', 'tag', 'bytes', 'share', 'blocks'],
          owners.map(([name, tag, bytes, blocks]) =>
            [name, tag_cell(tag), size(bytes), percent(bytes, peak.bytes), String(blocks)])),
    ...(data.more_owners > 0 ? [element('p', {}, `and ${data.more_owners} smaller ones`)] : []));
  fill_in('tags', table(['', 'number', 'number', 'number', 'number'], ['tag', 'at the peak', 'share', 'now', 'most'],
    data.by_tag.map(([tag, at_peak, now, most]) =>
      [tag_cell(tag), size(at_peak), percent(at_peak, peak.bytes), size(now), size(most)])));
  fill_in('totals',
    table(['', 'number', 'number'], ['bytes', 'now', 'most'],
          [['requested', stats.requested],
           ['allocated: requested, rounded up', stats.allocated],
           ['active: allocated, or freed and still pending on a stream', stats.active],
           ['reserved: mapped', stats.reserved],
           ['inactive split: free, in a partly used mapping', stats.inactive_split],
           ['pinned: free, cannot be unmapped', stats.pinned]].map(([name, [now, most]]) => [name, size(now), size(most)])),
    table(['', 'number'], ['also', 'now'], [
      ['capacity', size(stats.capacity)],
      ['largest free block', size(stats.largest_free)],
      ['internal fragmentation (rounding)', size(stats.internal_fragmentation)],
      ['holes between mapped ranges', String(stats.holes)],
      ['allocations, of which live', `${stats.allocations}, ${stats.live_allocations}`],
      ['driver calls', `${stats.driver_calls} in ${(stats.driver_nanoseconds / 1e6).toFixed(1)} ms`],
      ['growths, flushes', `${stats.growths}, ${stats.flushes}`],
      ['borrowed blocks, retries', `${stats.borrows}, ${stats.retries}`],
      ['waits between streams', String(stats.stream_waits)]]));
}

/// A path along values that hold until the next sample; with `below`, the area between the two curves.
function steps(xs, end, ys, below) {
  let path = `M${xs[0]} ${ys[0]}`;
  for (let i = 1; i < xs.length; ++i) path += `H${xs[i]}V${ys[i]}`;
  path += `H${end}`;
  if (!below) return path;
  path += `V${below.at(-1)}`;
  for (let i = xs.length - 1; i > 0; --i) path += `H${xs[i]}V${below[i - 1]}`;
  return path + `H${xs[0]}Z`;
}

function draw_timeline() {
  const host = document.getElementById('timeline');
  const width = Math.max(host.clientWidth, 320), height = 400;
  const left = 74, right = width - 14, top = 40, bottom = height - 44;
  const samples = data.samples, times = samples.map(s => s[1] / 1e6);
  const duration = Math.max(times.at(-1), 1e-6);
  const totals = samples.map(s => s.slice(3).reduce((a, b) => a + b, 0));
  const highest = Math.max(1, samples.reduce((a, s, i) => Math.max(a, s[2], totals[i]), 0)) * 1.04;
  const x = t => left + (right - left) * Math.min(t / duration, 1), y = b => bottom - (bottom - top) * b / highest;
  const fixed = value => value.toFixed(1);
  const plot = svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Memory over time'});

  const unit = 1024 ** Math.min(4, Math.floor(Math.log2(highest) / 10));
  const step = round_step(highest / unit, 6) * unit;
  for (let value = 0; value <= highest; value += step) {
    svg('line', {x1: left, x2: right, y1: y(value), y2: y(value), stroke: 'var(--line)'}, plot);
    svg('text', {x: left - 8, y: y(value) + 4, 'text-anchor': 'end'}, plot, size(value));
  }
  const scale = duration < 1e-3 ? 1e6 : duration < 1 ? 1e3 : 1;
  const apart = round_step(duration * scale, Math.max(2, Math.floor((right - left) / 110)));
  for (let t = 0; t <= duration * scale * 1.0001; t += apart) {
    svg('line', {x1: x(t / scale), x2: x(t / scale), y1: bottom, y2: bottom + 5, stroke: 'var(--muted)'}, plot);
    svg('text', {x: x(t / scale), y: bottom + 19, 'text-anchor': 'middle'}, plot, +t.toPrecision(6));
  }
  const name = {1: 'seconds', 1e3: 'milliseconds', 1e6: 'microseconds'}[scale];
  svg('text', {x: (left + right) / 2, y: height - 6, 'text-anchor': 'middle'}, plot, `${name} since the first event`);

  const xs = times.map(t => fixed(x(t)));
  let below = samples.map(() => 0);
  data.shown.forEach((tag, k) => {
    const above = below.map((b, i) => b + samples[i][3 + k]);
    svg('path', {d: steps(xs, right, above.map(b => fixed(y(b))), below.map(b => fixed(y(b)))),
                 fill: colour(tag), stroke: 'var(--card)', 'stroke-width': 0.5}, plot);
    below = above;
  });
  svg('path', {d: steps(xs, right, samples.map(s => fixed(y(s[2])))), fill: 'none', stroke: 'var(--ink)',
               'stroke-width': 2, 'stroke-linejoin': 'round'}, plot);

  const peak = x(data.peak.time / 1e6);
  svg('line', {x1: peak, x2: peak, y1: top - 20, y2: bottom, stroke: 'var(--ink)', 'stroke-dasharray': '3 3'}, plot);
  const side = peak > right - 60 ? 'end' : peak < left + 60 ? 'start' : 'middle';
  svg('text', {x: peak, y: 14, 'text-anchor': side, style: 'fill: var(--ink); font-weight: 600'}, plot,
      'peak ' + size(data.peak.bytes));
  for (const shortage of data.shortages) {
    const at = x(shortage[0] / 1e6);
    svg('line', {x1: at, x2: at, y1: top - 8, y2: bottom, stroke: 'var(--alarm)'}, plot);
    svg('path', {d: `M${at - 6} ${top - 18}h12l-6 11z`, fill: 'var(--alarm)'}, plot);
  }

  const cross = svg('line', {y1: top, y2: bottom, stroke: 'var(--ink)', visibility: 'hidden'}, plot);
  plot.onmousemove = event => {
    const px = event.clientX - plot.getBoundingClientRect().left;
    if (px < left - 8 || px > right + 8) return plot.onmouseleave();
    const t = duration * Math.max(0, Math.min(1, (px - left) / (right - left)));
    let i = 0;
    for (let step = 1 << 20; step >= 1; step >>= 1) if (i + step < times.length && times[i + step] <= t) i += step;
    cross.setAttribute('x1', px);
    cross.setAttribute('x2', px);
    cross.setAttribute('visibility', 'visible');
    const rows = [[seconds(t), `after event ${samples[i][0].toLocaleString('en')}`],
                  ['reserved', size(samples[i][2])], ['in use', size(totals[i])]];
    for (let k = data.shown.length; k-- > 0;) {
      if (samples[i][3 + k] > 0) rows.push([data.tags[data.shown[k]], size(samples[i][3 + k]), colour(data.shown[k])]);
    }
    const shortage = data.shortages.find(s => Math.abs(x(s[0] / 1e6) - px) < 6);
    if (shortage) {
      rows.unshift(['out of memory', seconds(shortage[0] / 1e6)], ['requested', size(shortage[1])],
                   ['free', size(shortage[2])], [shortage[4], '', colour(shortage[3])]);
    }
    show_tip(event, rows);
  };
  plot.onmouseleave = () => { cross.setAttribute('visibility', 'hidden'); hide_tip(); };
  host.replaceChildren(plot);
}

/// The mapped ranges, joined to regions that are drawn in one piece; unmapped addresses in a region are a hole.
const regions = [];
{
  const mapped = data.ranges.reduce((sum, range) => sum + range[2], 0);
  const ranges = data.ranges.map(([stream, start, bytes]) => ({stream, start, end: start + bytes, blocks: []}));
  for (const [range, offset, span, tag, name, count, bytes] of data.blocks) {
    const start = ranges[range].start + offset;
    ranges[range].blocks.push({start, end: start + span, tag, name, count, bytes});
  }
  ranges.sort((a, b) => a.stream - b.stream || a.start - b.start);
  for (const range of ranges) {
    const last = regions.at(-1);
    // Ranges far apart do not belong together, and a hole larger than all memory would hide it.
    if (last && last.stream === range.stream && range.start - last.end <= mapped) {
      last.ranges.push(range);
      last.end = range.end;
    } else {
      regions.push({stream: range.stream, start: range.start, end: range.end, ranges: [range]});
    }
  }
}

/// Each line shows the same number of bytes; long regions go on in the next line.
function lay_out() {
  const kRow = 22, kMostLines = 320;
  const span = regions.reduce((sum, region) => sum + region.end - region.start, 0);
  let per_line = 2 ** Math.max(12, Math.ceil(Math.log2(Math.max(1, span) / 20)));
  const lines_needed = () => regions.reduce((n, region) => n + Math.ceil((region.end - region.start) / per_line), 0);
  while (lines_needed() > kMostLines && lines_needed() > regions.length) per_line *= 2;
  const lines = [], headings = [];
  let y = 4, stream = null, skipped = 0;
  for (const region of regions) {
    if (lines.length >= kMostLines) { ++skipped; continue; }
    if (region.stream !== stream) {
      stream = region.stream;
      headings.push([y + 16, `stream ${stream}`]);
      y += 24;
    }
    for (let start = region.start; start < region.end; start += per_line) {
      lines.push({y, region, start, end: Math.min(start + per_line, region.end)});
      y += kRow;
    }
    y += 6;
  }
  if (skipped) headings.push([y + 16, `${skipped} more ranges are not drawn`]);
  return {per_line, lines, headings, row: kRow - 3, height: y + (skipped ? 24 : 0)};
}

const canvas = document.getElementById('map');
const kGutter = 118;
let layout = null;

function draw_map() {
  layout = lay_out();
  const style = getComputedStyle(document.documentElement), ratio = devicePixelRatio || 1;
  const of = name => style.getPropertyValue(name).trim();
  const tags = data.tags.map((_, i) => of(`--tag-${i}`));
  const width = Math.max(canvas.parentElement.clientWidth, 320);
  layout.width = width - kGutter - 2;
  canvas.style.height = layout.height + 'px';
  canvas.width = width * ratio;
  canvas.height = layout.height * ratio;
  const ink = canvas.getContext('2d');
  ink.scale(ratio, ratio);
  const hatch = document.createElement('canvas');
  hatch.width = hatch.height = 6;
  const pen = hatch.getContext('2d');
  pen.strokeStyle = of('--hole');
  for (const shift of [-6, 0, 6]) { pen.moveTo(shift, 6); pen.lineTo(shift + 6, 0); }
  pen.stroke();
  const hole = ink.createPattern(hatch, 'repeat');
  const label_on = fill => {
    const [r, g, b] = [1, 3, 5].map(i => parseInt(fill.slice(i, i + 2), 16) / 255);
    return 0.21 * r ** 2.2 + 0.72 * g ** 2.2 + 0.07 * b ** 2.2 > 0.19 ? '#101214' : '#ffffff';
  };
  ink.font = '600 13px system-ui, sans-serif';
  ink.fillStyle = of('--ink');
  for (const [y, text] of layout.headings) ink.fillText(text, 0, y);
  for (const line of layout.lines) {
    const x = address => kGutter + layout.width * (Math.max(line.start, Math.min(line.end, address)) - line.start) / layout.per_line;
    const fill = (from, to, paint, least) => {
      ink.fillStyle = paint;
      ink.fillRect(x(from), line.y, Math.max(x(to) - x(from), least), layout.row);
    };
    ink.font = '11px ui-monospace, Menlo, Consolas, monospace';
    ink.fillStyle = of('--muted');
    ink.fillText('0x' + line.start.toString(16), 0, line.y + 14);
    fill(line.start, line.end, hole, 0);
    for (const range of line.region.ranges) {
      if (range.end <= line.start || range.start >= line.end) continue;
      fill(range.start, range.end, of('--free'), 0);
      for (const block of range.blocks) {
        if (block.end <= line.start || block.start >= line.end) continue;
        const wide = x(block.end) - x(block.start);
        fill(block.start, block.end, tags[block.tag], 0.6);
        if (wide > 4) {
          ink.fillStyle = of('--card');
          ink.fillRect(x(block.end) - 1, line.y, 1, layout.row);
        }
        if (wide < 50 || block.name < 0) continue;
        ink.save();
        ink.beginPath();
        ink.rect(x(block.start), line.y, wide - 5, layout.row);
        ink.clip();
        ink.font = '11px system-ui, sans-serif';
        ink.fillStyle = label_on(tags[block.tag]);
        ink.fillText(data.names[block.name].split('/').at(-1), x(block.start) + 5, line.y + 13.5);
        ink.restore();
      }
    }
  }
  document.getElementById('scale').textContent = regions.length ? `A line shows ${size(layout.per_line)}.` : '';
}

/// The last of `items` that starts at or before the address and holds it; and its number.
function at_address(items, address) {
  let low = 0, high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].start <= address) low = middle + 1; else high = middle;
  }
  return [low > 0 && items[low - 1].end > address ? items[low - 1] : null, low];
}

canvas.onmousemove = event => {
  const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
  const line = layout.lines.find(l => py >= l.y && py < l.y + layout.row);
  const address = line && line.start + layout.per_line * (px - kGutter) / layout.width;
  if (!line || px < kGutter || address >= line.end) return hide_tip();
  const [range, next_range] = at_address(line.region.ranges, address);
  const where = ['address', '0x' + Math.floor(address).toString(16)];
  if (!range) {
    const gap = line.region.ranges[next_range].start - line.region.ranges[next_range - 1].end;
    return show_tip(event, [['not mapped', size(gap)], where]);
  }
  const [block, next] = at_address(range.blocks, address);
  if (!block) {
    const from = next > 0 ? range.blocks[next - 1].end : range.start;
    const to = next < range.blocks.length ? range.blocks[next].start : range.end;
    return show_tip(event, [['mapped, free', size(to - from)], where]);
  }
  const many = block.count > 1;
  show_tip(event, [[many ? `${block.count.toLocaleString('en')} small blocks` : data.names[block.name]],
                   [(many ? 'mostly ' : '') + data.tags[block.tag], size(block.bytes), colour(block.tag)],
                   ['address', '0x' + block.start.toString(16)]]);
};
canvas.onmouseleave = hide_tip;

function draw() { draw_timeline(); draw_map(); }
write_text();
draw();
addEventListener('resize', draw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
