// SPDX-License-Identifier: Apache-2.0
// The report page: runs side by side. A run has its colour and its name everywhere.
'use strict';
const runs = data.runs;
const colour = run => `var(--run-${runs.indexOf(run) % 8})`;
const name_cell = run => [element('span', {className: 'run', title: run.name}, chip(colour(run)), run.name)];
const known = values => values.filter(value => value !== null && value !== undefined);
const last = values => known(values).at(-1);
const short = value => value === null || value === undefined ? '-' : value === 0 ? '0'
  : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(+value.toPrecision(4)) : (+value.toPrecision(4)).toExponential();
function median(values) {
  const sorted = known(values).sort((a, b) => a - b);
  return sorted.length === 0 ? null : sorted[Math.floor(sorted.length / 2)];
}

/// The mean of each value's neighbours, a twentieth of all points wide; on a log axis of their logarithms.
function smoothed(points, scale, back) {
  const reach = Math.floor(points.length / 40);
  return points.map(([step], i) => {
    const near = points.slice(Math.max(0, i - reach), i + reach + 1);
    return [step, back(near.reduce((sum, point) => sum + scale(point[1]), 0) / near.length)];
  });
}

/// Curves over steps. Each is {run, x, y, dots, marks, dashed}; values that are null, or not positive on a log axis, are
/// left out. `dots` replace the line, `marks` stand on it. `smooth`: the curves are pale, with their means in full colour.
/// `base`: ticks are round numbers of its powers.
function chart(id, curves, {log = false, text = short, smooth = false, base = 1000, steps = 'optimizer step', label = id} = {}) {
  const host = document.getElementById(id);
  const points = curves.map(({x, y}) => x.map((step, i) => [step, y[i]])
    .filter(([, value]) => value !== null && value !== undefined && (!log || value > 0)));
  const all = points.flat();
  if (all.length === 0) return host.replaceChildren(element('p', {}, 'nothing was recorded'));
  const width = Math.max(host.clientWidth, 320), height = 300, left = 74, right = width - 14, top = 12, bottom = height - 40;
  const most_x = Math.max(1, ...all.map(p => p[0]));
  const scale = value => log ? Math.log10(value) : value;
  let low = Math.min(...all.map(p => scale(p[1]))), high = Math.max(...all.map(p => scale(p[1])));
  if (!log) low = Math.min(low, 0);
  if (high - low < 1e-12) { high += log ? 0.5 : Math.abs(high) * 0.1 || 1; low -= log ? 0.5 : 0; }
  const x = step => left + (right - left) * step / most_x;
  const y = value => bottom - (bottom - top) * (scale(value) - low) / (high - low);
  const plot = svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label});

  const unit = base ** Math.max(0, Math.floor(Math.log(Math.max(high - low, 1)) / Math.log(base)));
  const apart = log ? Math.max(1, Math.ceil((high - low) / 6)) : unit * round_step((high - low) / unit, 5);
  const parts = log && high - low < 2 ? [1, 2, 5] : [1];
  for (let tick = Math.ceil(low / apart - 1e-9) * apart - (log ? apart : 0); tick <= high + 1e-9; tick += apart) {
    for (const part of parts) {
      const value = log ? part * 10 ** tick : tick;
      if (scale(value) < low - 1e-9 || scale(value) > high + 1e-9) continue;
      svg('line', {x1: left, x2: right, y1: y(value), y2: y(value), stroke: 'var(--line)'}, plot);
      svg('text', {x: left - 8, y: y(value) + 4, 'text-anchor': 'end'}, plot, text(value));
    }
  }
  const between = Math.max(1, round_step(most_x, Math.max(2, Math.floor((right - left) / 100))));
  for (let step = 0; step <= most_x * 1.0001; step += between)
    svg('text', {x: x(step), y: bottom + 18, 'text-anchor': 'middle'}, plot, String(+step.toPrecision(6)));
  svg('text', {x: (left + right) / 2, y: height - 4, 'text-anchor': 'middle'}, plot, steps);

  const place = ([step, value]) => [x(step).toFixed(1), y(value).toFixed(1)];
  const line = (places, run, more) => svg('path', {d: 'M' + places.map(p => p.join(' ')).join('L'), fill: 'none',
    stroke: colour(run), 'stroke-width': 1.8, 'stroke-linejoin': 'round', ...more}, plot);
  curves.forEach(({run, dots, marks, dashed}, k) => {
    const places = points[k].map(place);
    if (marks) line(places, run, {});
    if (dots || marks || places.length === 1) {
      for (const [cx, cy] of places) svg('circle', {cx, cy, r: 4, fill: colour(run), stroke: 'var(--card)'}, plot);
    } else if (smooth && places.length > 20) {
      line(places, run, {'stroke-width': 1, 'stroke-opacity': 0.35});
      line(smoothed(points[k], scale, log ? value => 10 ** value : value => value).map(place), run, {});
    } else if (places.length > 1) {
      line(places, run, dashed ? {'stroke-dasharray': '5 4'} : {});
    }
  });
  plot.onmousemove = event => {
    const step = most_x * (event.clientX - plot.getBoundingClientRect().left - left) / (right - left);
    const rows = [[`near step ${Math.round(Math.max(0, Math.min(most_x, step)))}`]];
    curves.forEach(({run, label}, k) => {
      if (points[k].length === 0) return;
      const near = points[k].reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a);
      rows.push([label ? `${run.name}, ${label}` : run.name, text(near[1]), colour(run)]);
    });
    show_tip(event, rows);
  };
  plot.onmouseleave = hide_tip;
  host.replaceChildren(plot);
}

const curves_of = (key, label) => runs.map(run => ({run, label, x: run.training.step, y: run.training[key]}));

function draw_charts() {
  chart('loss', [...curves_of('loss', 'training'),
                 ...runs.map(run => ({run, label: 'validation', dots: true, x: run.validation.step, y: run.validation.valid_loss}))],
        {log: true, smooth: true});
  chart('valid_error', runs.flatMap(run => [
    {run, label: 'validation', marks: true, x: run.validation.step, y: run.validation.valid_error},
    {run, label: 'baseline', dashed: true, x: run.validation.step, y: run.validation.valid_baseline}]), {log: true});
  chart('learning_rate', curves_of('learning_rate'));
  chart('gradient_norm', curves_of('gradient_norm'), {log: true, smooth: true});
  chart('steps_per_second', curves_of('steps_per_second'), {smooth: true});
  const peaks = curves_of('memory_peak_bytes', 'peak').map(curve => ({...curve, dashed: true}));
  chart('memory', [...curves_of('memory_reserved_bytes', 'reserved'), ...peaks], {text: size, base: 1024});
  rollout_fields().forEach((field, i) => {
    chart(`horizon_${i}`, rollouts_of(field).map(({run, steps, errors}) =>
      ({run, marks: true, x: steps, y: errors.map(error => error.rmse)})),
          {steps: 'steps of the rollout', label: `RMSE of ${field}`});
  });
}

const tag_colour = tag => `var(--tag-${data.tags.indexOf(tag)})`;

/// An empty plot of bytes from 0 to `most` in `host`, its x axis named `under`.
function bytes_plot(host, most, under, label) {
  const width = Math.max(host.clientWidth, 320), height = 240, left = 74, right = width - 14, top = 22, bottom = height - 40;
  const plot = svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label});
  host.replaceChildren(plot);
  const y = bytes => bottom - (bottom - top) * bytes / most;
  const unit = 1024 ** Math.floor(Math.log(most) / Math.log(1024));
  const apart = unit * round_step(most / unit, 4);
  for (let tick = 0; tick <= most * 1.0001; tick += apart) {
    svg('line', {x1: left, x2: right, y1: y(tick), y2: y(tick), stroke: 'var(--line)'}, plot);
    svg('text', {x: left - 8, y: y(tick) + 4, 'text-anchor': 'end'}, plot, size(tick));
  }
  svg('text', {x: (left + right) / 2, y: height - 4, 'text-anchor': 'middle'}, plot, under);
  plot.onmouseleave = hide_tip;
  const at = event => (event.clientX - plot.getBoundingClientRect().left - left) / (right - left);
  return {plot, left, right, top, bottom, y, at};
}

/// Calls draw(run, host, most) for each of the runs, in #id, with the most bytes that any of them has at once.
function draw_stacks(id, shown, values_of, draw) {
  const total = (values, i) => data.tags.reduce((sum, tag) => sum + (values[tag]?.[i] ?? 0), 0);
  const most = Math.max(...shown.flatMap(run => values_of(run).step.map((step, i) => total(values_of(run), i))));
  const hosts = shown.map(() => element('div', {className: 'chart'}));
  fill_in(id, ...shown.map((run, i) => element('div', {}, element('p', {}, ...name_cell(run)), hosts[i])));
  shown.forEach((run, i) => draw(run, hosts[i], most));
}
const tags_of = values => data.tags.filter(tag => values[tag] !== undefined);
const tip_of_tags = (values, i) => tags_of(values).filter(tag => values[tag][i]).map(tag => [tag, size(values[tag][i]), tag_colour(tag)]);

/// Of each run a bar for each epoch: the bytes of every tag at the epoch's peak, one on the other.
function draw_peaks(run, host, most) {
  const {plot, left, right, bottom, y, at} = bytes_plot(host, most, 'optimizer step at the end of the epoch', 'memory by tag');
  const steps = run.memory.step, slot = (right - left) / steps.length;
  const labelled = Math.ceil(steps.length / Math.max(1, Math.floor((right - left) / 90)));
  steps.forEach((step, i) => {
    let below = 0;
    for (const tag of tags_of(run.memory)) {
      const bytes = run.memory[tag][i] ?? 0;
      svg('rect', {x: left + i * slot, width: slot > 6 ? Math.min(slot - 2, 90) : slot, y: y(below + bytes),
                   height: y(below) - y(below + bytes), fill: tag_colour(tag)}, plot);
      below += bytes;
    }
    if (i % labelled === 0)
      svg('text', {x: left + i * slot + Math.min(slot, 92) / 2, y: bottom + 18, 'text-anchor': 'middle'}, plot, String(step));
  });
  plot.onmousemove = event => {
    const i = Math.max(0, Math.min(steps.length - 1, Math.floor(at(event) * steps.length)));
    const sum = tags_of(run.memory).reduce((bytes, tag) => bytes + (run.memory[tag][i] ?? 0), 0);
    show_tip(event, [[`epoch until step ${steps[i]}`], ['peak', size(sum)], ...tip_of_tags(run.memory, i)]);
  };
}

/// The bytes in use over the time of a traced step, by tag, with its phases above.
function draw_traced(run, host, most) {
  const {step, of, until, phases} = run.step_memory;
  const {plot, left, right, top, y, at} =
    bytes_plot(host, most, `milliseconds of step ${of}`, 'memory over a step');
  const x = ms => left + (right - left) * ms / until;
  let below = step.map(() => 0);
  for (const tag of tags_of(run.step_memory)) {
    const above = below.map((bytes, i) => bytes + run.step_memory[tag][i]);
    const edge = heights => heights.map((bytes, i) => [x(step[i]), x(step[i + 1] ?? until)].map(end => `${end.toFixed(1)} ${y(bytes).toFixed(1)}`));
    const path = [...edge(above).flat(), ...edge(below).flat().reverse()];
    svg('path', {d: 'M' + path.join('L') + 'Z', fill: tag_colour(tag)}, plot);
    below = above;
  }
  const between = round_step(until, Math.max(2, Math.floor((right - left) / 90)));
  for (let ms = 0; ms <= until; ms += between)
    svg('text', {x: x(ms), y: y(0) + 18, 'text-anchor': 'middle'}, plot, String(+ms.toPrecision(6)));
  for (const [name, begin, end] of phases) {
    svg('line', {x1: x(begin) + 1, x2: Math.max(x(begin) + 2, x(end) - 1), y1: top - 5, y2: top - 5, stroke: 'var(--muted)', 'stroke-width': 2}, plot);
    if (x(end) - x(begin) > 7 * name.length)
      svg('text', {x: (x(begin) + x(end)) / 2, y: top - 10, 'text-anchor': 'middle'}, plot, name);
  }
  plot.onmousemove = event => {
    const ms = until * Math.max(0, Math.min(1, at(event)));
    const i = Math.max(0, step.findLastIndex(begin => begin <= ms));
    const phase = phases.find(([, begin, end]) => begin <= ms && ms <= end);
    show_tip(event, [[`${ms.toFixed(2)} ms${phase ? ', ' + phase[0] : ''}`], ...tip_of_tags(run.step_memory, i)]);
  };
}

function draw_tags() {
  const epochs = runs.filter(run => run.memory.step.length > 0), traced = runs.filter(run => run.step_memory !== null);
  const tags = new Set([...epochs.map(run => run.memory), ...traced.map(run => run.step_memory)].flatMap(tags_of));
  document.getElementById('tags_section').hidden = tags.size === 0;
  fill_in('tag_names', ...[...tags].map(tag => element('li', {}, chip(tag_colour(tag)), tag)));
  fill_in('traced_note', traced.length > 0 ? 'What was in use over the time of a traced step'
    : 'A run with train --trace STEP also has what was in use over the time of that step.');
  draw_stacks('tags', epochs, run => run.memory, draw_peaks);
  draw_stacks('traced', traced, run => run.step_memory, draw_traced);
}

function write_overview() {
  fill_in('verdicts', ...runs.map(run => element('p', {}, ...name_cell(run), ` ${run.verdict.text}`)));
  const head = ['run', 'steps', 'training loss', 'lowest validation error', '/ baseline', 'at step', 'steps/s', 'peak memory', 'folder'];
  fill_in('overview', table(['', 'number', 'number', 'number', 'number', 'number', 'number', 'number', 'name'], head, runs.map(run => {
    const valid = known(run.validation.valid_error);
    const lowest = valid.length === 0 ? null : Math.min(...valid);
    const at = run.validation.valid_error.indexOf(lowest);
    const peak = known(run.training.memory_peak_bytes);
    return [name_cell(run), String(last(run.training.step) ?? 0), short(last(run.training.loss)), short(lowest),
            lowest === null ? '-' : short(lowest / run.validation.valid_baseline[at]), lowest === null ? '-' : String(run.validation.step[at]),
            short(median(run.training.steps_per_second)), peak.length === 0 ? '-' : size(Math.max(...peak)), run.path];
  })));
}

/// Of each run with rollouts of a field: its horizons and the errors over them.
function rollouts_of(field) {
  return runs.filter(run => run.evaluation !== null).map(run => {
    const rollouts = run.evaluation.rollouts.filter(rollout => rollout.fields[field]);
    return {run, steps: rollouts.map(rollout => rollout.steps), errors: rollouts.map(rollout => rollout.fields[field])};
  }).filter(({steps}) => steps.length > 0);
}
function rollout_fields() {
  const evaluated = runs.filter(run => run.evaluation !== null);
  return [...new Set(evaluated.flatMap(run => Object.keys(run.evaluation.fields)))].filter(field => rollouts_of(field).length > 0);
}

function write_errors() {
  const evaluated = runs.filter(run => run.evaluation !== null);
  const missing = runs.filter(run => run.evaluation === null)
    .map(run => `${run.name}: no errors (${run.without_evaluation}).`);
  const splits = new Set(evaluated.map(run => run.evaluation.split));
  const baselines = new Set(evaluated.map(run => run.evaluation.baseline).filter(text => text));
  for (const run of evaluated)
    for (const [name, value, unit] of run.evaluation.metrics) missing.push(`${run.name}: ${name} ${short(value)} ${unit}.`);
  fill_in('errors_note', [...splits].map(split => `Split ${split}, in physical units. `).join('') +
          [...baselines].map(text => `Baseline: ${text}. `).join(''), missing.join(' '));
  if (evaluated.length === 0) return;
  const rows = [];
  for (const run of evaluated) {
    const {fields, steady, checkpoint_step} = run.evaluation;
    for (const field in fields) {
      const {unit, rmse, mae, relative_l2, baseline_rmse} = fields[field];
      const ratio = baseline_rmse ? short(rmse / baseline_rmse) : '-';
      rows.push([name_cell(run), String(checkpoint_step), field, steady ? 'prediction' : 'one step', short(rmse), short(mae),
                 short(relative_l2), unit || '-', ratio]);
    }
  }
  fill_in('errors', table(['', 'number', 'name', '', 'number', 'number', 'number', '', 'number'],
    ['run', 'step', 'field', 'of', 'RMSE', 'MAE', 'relative L2', 'unit', 'RMSE / baseline'], rows));
  fill_in('horizons', ...rollout_fields().map((field, i) => {
    const {unit} = rollouts_of(field)[0].run.evaluation.fields[field];
    const lines = rollouts_of(field).flatMap(({run, steps, errors}) => errors.map((error, k) =>
      [name_cell(run), String(steps[k]), short(error.rmse), short(error.mae), short(error.relative_l2),
       error.baseline_rmse ? short(error.rmse / error.baseline_rmse) : '-']));
    return element('div', {},
      element('p', {}, `RMSE of ${field} over the steps of a rollout up to each horizon${unit ? `, ${unit}` : ''}`),
      element('div', {className: 'chart', id: `horizon_${i}`}),
      element('div', {className: 'scroll'}, table(['', 'number', 'number', 'number', 'number', 'number'],
        [`rollout of ${field}`, 'steps 1 to', 'RMSE', 'MAE', 'relative L2', 'RMSE / baseline'], lines)));
  }));
}

/// A slider through the pictures of each run; it moves those of the others, too.
function write_pictures() {
  const shown = runs.filter(run => run.pictures.length > 0);
  const moves = [];
  document.getElementById('pictures_section').hidden = shown.length === 0;
  fill_in('pictures', ...shown.map(run => {
    const picture = element('div', {});
    const caption = element('p', {});
    const meshes = run.meshes.map(mesh_of);
    const show = i => {
      const {svg, mesh, caption: text} = run.pictures[i];
      const cut = svg ? '' : meshes[mesh].cut;
      caption.replaceChildren(chip(colour(run)), `${run.name}: ${text}${cut ? `, cut at ${cut}` : ''}`);
      if (!svg) return picture.replaceChildren(...field_panels(run.pictures[i], meshes[mesh]));
      picture.replaceChildren(element('img', {alt: text, src: 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(svg)}));
    };
    const slider = element('input', {type: 'range', min: 0, max: run.pictures.length - 1, value: 0, ariaLabel: 'picture'});
    slider.oninput = () => moves.forEach(move => move(+slider.value));
    moves.push(i => {
      slider.value = i;
      show(+slider.value);
    });
    show(0);
    return element('div', {className: 'picture'}, caption, picture, ...(run.pictures.length > 1 ? [slider] : []));
  }));
}

/// "section.key" to the text of its value, of lines that train itself wrote.
function settings(toml) {
  const found = new Map();
  let section = '';
  for (const line of toml.split('\n')) {
    const header = line.match(/^\[(.+)\]$/), pair = line.match(/^([\w.-]+) = (.*?)( +#.*)?$/);
    if (header) section = header[1] + '.';
    if (pair) found.set(section + pair[1], pair[2]);
  }
  return found;
}

function write_configs() {
  const all = runs.map(run => settings(run.config));
  const keys = [...new Set(all.flatMap(map => [...map.keys()]))]
    .filter(key => new Set(all.map(map => map.get(key))).size > 1);
  if (keys.length > 0) {
    fill_in('differences', table(['name', ...runs.map(() => 'name')], ['keys that differ', ...runs.map(name_cell)],
      keys.map(key => [key, ...all.map(map => map.get(key) ?? '-')])));
  }
  fill_in('configs', ...runs.map(run => element('details', {}, element('summary', {}, ...name_cell(run)),
    element('pre', {}, run.config || 'no config.resolved.toml'))));
}

function write_machines() {
  const rows = [
    ['started', e => e.time], ['command', e => (e.command ?? []).join(' ')], ['folder', e => e.directory],
    ['version', e => e.machine?.version], ['compiler', e => e.machine?.compiler], ['device', e => e.extra?.device],
    ['CPU', e => e.machine?.cpu], ['instruction set', e => e.machine?.isa], ['CPUs', e => e.machine?.cpus],
    ['GPUs', e => (e.machine?.gpus ?? []).map(gpu => gpu.name ?? JSON.stringify(gpu)).join(', ')],
    ['memory', e => e.memory?.total_bytes && size(e.memory.total_bytes)], ['system', e => e.host?.system],
    ['host', e => e.host?.name]];
  fill_in('machines', table(['', ...runs.map(() => 'name')], ['', ...runs.map(name_cell)],
    rows.map(([name, read]) => [name, ...runs.map(run => String((run.environment && read(run.environment)) || '-'))])));
}

fill_in('made', `${count(runs.length, 'run')}; meshgrad ${data.version}.`);
fill_in('names', ...runs.map(run => element('li', {}, ...name_cell(run))));
write_overview();
write_errors();
write_pictures();
write_configs();
write_machines();
draw_charts();
draw_tags();
let resized;
addEventListener('resize', () => { clearTimeout(resized); resized = setTimeout(() => { draw_charts(); draw_tags(); }, 120); });
