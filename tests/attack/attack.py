#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attacks the program: kills, signals, failing input and output, damaged files, full disks, locales, closed
descriptors, hostile outputs. What must hold: an interrupted run, resumed, gives the bits of the uninterrupted one;
a command ends with its result or with one error; no file of a user is lost; nothing hangs.
usage: attack.py --program build/ci/meshgrad --source . [--seconds 60] [--seed N] [--only NAME,...] [--keep DIR]
Prints how often each attack was made, and each finding with the seed that repeats it. Exit code 1 with findings."""
import argparse
import errno
import os
import pathlib
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from bench import STEPS, Bench, Finding, fresh_folder, mutated, pause, send, wait_for, write_npz

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)
PRELOAD = ""  # the library of failing calls


def kill(bench, folder, draw):
    """SIGKILL at random moments."""
    run = folder / "run"
    for _ in range(draw.randrange(1, 4)):
        process = bench.start(bench.train_words(run, bench.has_checkpoint(run)))
        pause(draw, 0.5)
        send(process, signal.SIGKILL)
        wait_for(process, 60)
    bench.finish(run)


def stop(bench, folder, draw):
    """One or two stop signals, up to 50 ms apart: a checkpoint every time."""
    run = folder / "run"
    process = bench.start(bench.train_words(run, False) + ["--set", "train.steps=1000000"])
    metrics = run / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 0):
        time.sleep(0.005)
    pause(draw, 0.1)
    first = draw.choice(STOPS)
    send(process, first)
    if draw.random() < 0.7:
        pause(draw, 0.05)
        send(process, draw.choice([number for number in STOPS if number != signal.SIGINT]))
    done = wait_for(process, 60)
    bench.check_outcome(done, codes=(75,))
    if not bench.has_checkpoint(run):
        raise Finding(f"signal {first}: no checkpoint")


def stop_and_resume(bench, folder, draw):
    """Stopped by signals wherever it is, then resumed to the end."""
    run = folder / "run"
    for _ in range(3):
        process = bench.start(bench.train_words(run, bench.has_checkpoint(run)))
        bench.wait_until_caught(process)
        pause(draw, 0.2)
        send(process, draw.choice(STOPS))
        done = wait_for(process, 60)
        bench.check_outcome(done, codes=(0, 75))
        if done.returncode == 0:
            break
    bench.finish(run)


def timeout(bench, folder, draw):
    """GNU timeout sends its signal to the process, then to the group."""
    run = folder / "run"
    words = bench.command(bench.train_words(run, False) + ["--set", "train.steps=1000000"])
    name = draw.choice(("TERM", "HUP", "USR1"))
    seconds = 0.4 + 0.3 * draw.random()
    done = subprocess.run(["timeout", "-s", name, f"{seconds:.3f}"] + words, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False)
    if done.returncode not in (75, 124) or not (bench.has_checkpoint(run) or not (run / "metrics.jsonl").exists()):
        raise Finding(f"timeout -s {name} {seconds:.3f}: {done.returncode}, {done.stderr.decode()[-300:]}")


def failing_call(bench, folder, draw):
    """One call fails, or all from one on, or the process is killed there; then the run goes on."""
    run = folder / "run"
    start = draw.random() < 0.5
    if not start:
        bench.start_stopped(run, draw)
    error = draw.choice((0, 0, -1, errno.ENOSPC, errno.EIO, errno.EINTR, errno.ENOSPC))
    lasting = error == errno.ENOSPC and draw.random() < 0.5
    attack = {"LD_PRELOAD": PRELOAD, "ATTACK_CALL": str(draw.randrange(1, 120)), "ATTACK_ERRNO": str(error),
              "ATTACK_ON": str(int(lasting)), "ATTACK_FOLDER": str(run)}
    done = bench.run(bench.train_words(run, bench.has_checkpoint(run)), environment=attack)
    if error != 0 or done.returncode != -signal.SIGKILL:
        bench.check_outcome(done)
    bench.finish(run)


def damaged_checkpoint(bench, folder, draw):
    """A checkpoint with a flipped bit is refused, or the flip has no effect."""
    run = folder / "run"
    shutil.copytree(bench.straight, run)
    (run / "checkpoints" / "best.safetensors").unlink()
    last = run / "checkpoints" / "last.safetensors"
    data = bytearray(last.read_bytes())
    for _ in range(draw.choice((1, 1, 1, 3))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    last.write_bytes(data)
    done = bench.run(["evaluate", run, "--json"])
    bench.check_outcome(done)
    if done.returncode == 0:
        whole = bench.run(["evaluate", bench.straight, "--checkpoint", "last", "--json"])
        if done.stdout.replace(str(run).encode(), b"") != whole.stdout.replace(str(bench.straight).encode(), b""):
            raise Finding("a flipped bit of a checkpoint changes results")


def damaged_run(bench, folder, draw):
    """Any file of a stopped run is damaged or gone: resumed to the same result, or one error."""
    run = folder / "run"
    bench.start_stopped(run, draw)
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and "tb" not in path.parts]
    path = draw.choice(files)
    if draw.random() < 0.3:
        path.unlink()
    else:
        path.write_bytes(mutated(draw, path.read_bytes()))
    done = bench.run(bench.train_words(run, True))
    bench.check_outcome(done)
    if done.returncode == 0:
        # Notes, pictures and lines of metrics may be lost; weights may not change.
        if bench.without_folder((run / "checkpoints" / "last.safetensors").read_bytes()) != bench.expected[0]:
            raise Finding(f"{path.name} damaged: other weights")


def damaged_input(bench, folder, draw):
    """Mutated files of every kind: a result or one error, never a crash, a hang or much memory."""
    tree = bench.source / "tests" / "data"
    kind = draw.choice(("mgd", "npz", "config", "hdf5", "tfrecord", "meta", "verify", "trace", "metrics"))
    out = folder / "out.mgd"
    sources = {"mgd": bench.packed, "npz": bench.npz / "train.npz", "config": bench.straight / "config.resolved.toml",
               "hdf5": tree / "two_meshes.h5", "tfrecord": tree / "cylinder_flow_sample" / "test.tfrecord",
               "meta": tree / "cylinder_flow_sample" / "meta.json",
               "verify": tree / "oracles" / "mgn_small.safetensors",
               "trace": tree / "traces" / "mgn_train.txt.gz", "metrics": bench.straight / "metrics.jsonl"}
    source = sources[kind]
    if kind in ("tfrecord", "meta"):
        shutil.copytree(source.parent, folder / "flow")
        target = folder / "flow" / source.name
    elif kind == "metrics":
        shutil.copytree(bench.straight, folder / "run")
        target = folder / "run" / source.name
    else:
        target = folder / source.name
    target.write_bytes(mutated(draw, source.read_bytes()))
    words = {"mgd": ["evaluate", bench.straight, "--data", target, "--json"],
             "npz": ["convert", target, "-o", out, "--split", "1"], "hdf5": ["convert", target, "-o", out],
             "config": ["config", "effective", target], "tfrecord": ["convert", folder / "flow", "-o", out],
             "meta": ["convert", folder / "flow", "-o", out], "verify": ["verify", target],
             "trace": ["memory", "replay", target],
             "metrics": bench.train_words(folder / "run", True) + ["--set", f"train.steps={STEPS + 1}"]}[kind]
    done = bench.run(words, seconds=120)
    if kind == "verify" and b"not within tolerance" in done.stdout:
        return  # other values: a result, with exit code 1
    bench.check_outcome(done)
    if kind == "mgd" and done.returncode == 0:
        if done.stdout.replace(str(target).encode(), b"") != bench.evaluated.replace(str(bench.packed).encode(), b""):
            raise Finding("a damaged packed file changes results")
    if out.exists() and bench.run(["info", out]).returncode != 0:
        raise Finding(f"{kind}: convert wrote a file that cannot be opened")


def changed_data(bench, folder, draw):
    """The packed file changes while a run reads it: one error, and with the file as it was the run goes on."""
    run, data = folder / "run", folder / "waves.mgd"
    shutil.copy(bench.packed, data)
    words = bench.train_words(run, False) + ["--set", f"data.path={data}", "--set", "train.steps=1000000"]
    process = bench.start(words)
    metrics = run / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 0):
        time.sleep(0.005)
    pause(draw, 0.2)
    whole = data.read_bytes()
    with open(data, "r+b") as file:
        how = draw.choice(("truncate", "zero", "overwrite", "touch"))
        if how == "truncate":
            file.truncate(draw.randrange(len(whole)))
        elif how == "zero":
            file.write(bytes(len(whole)))
        elif how == "overwrite":
            file.seek(draw.randrange(len(whole)))
            file.write(draw.randbytes(200))
    if how == "touch":
        os.utime(data)
    try:
        done = wait_for(process, 3)
    except Finding:
        if how in ("truncate", "zero"):  # other changes may leave what the run uses as it was
            raise Finding(f"{how}: trains on for 3 s") from None
        return
    bench.check_outcome(done, codes=(1,))
    data.write_bytes(whole)
    if bench.has_checkpoint(run):
        done = bench.run(words + ["--resume", "--set", "train.steps=1"])
        bench.check_outcome(done)


def hostile_output(bench, folder, draw):
    """convert -o FILE --force replaces nothing but a packed file, check --html FILE nothing but a page."""
    kind = draw.choice(("device", "fifo", "link", "folder", "input", "text", "packed", "long"))
    page = draw.random() < 0.5
    target = folder / "target"
    source = folder / "train.npz"
    shutil.copy(bench.npz / "train.npz", source)
    if kind == "device":
        try:
            os.mknod(target, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            return
    elif kind == "fifo":
        os.mkfifo(target)
    elif kind == "link":
        target.symlink_to(source)
    elif kind == "folder":
        target.mkdir()
    elif kind == "input":
        target = source
    elif kind == "text":
        target.write_text("a user's notes")
    elif kind == "packed":
        shutil.copy(bench.packed, target)
    elif kind == "long":
        target = folder / ("n" * 300)
    before = None if kind == "long" else (target.lstat().st_mode, target.read_bytes() if target.is_file() else b"")
    words = ["check", source, "--html", target] if page else ["convert", source, "-o", target, "--split", "1", "--force"]
    done = bench.run(words)
    bench.check_outcome(done)
    replaced = kind == "packed" and not page
    if (done.returncode == 0) != replaced:
        raise Finding(f"{words[0]}, {kind}: exit code {done.returncode}")
    if not replaced and kind != "long":
        after = (target.lstat().st_mode, target.read_bytes() if target.is_file() else b"")
        if after != before:
            raise Finding(f"{words[0]}, {kind}: replaced")


def descriptors(bench, folder, draw):
    """Standard streams that are closed or full."""
    run = folder / "run"
    redirect = draw.choice(("2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-", "2>/dev/full", "0<&- 2>/dev/full"))
    words = bench.command(bench.train_words(run, False))
    done = subprocess.run(["/bin/sh", "-c", f'exec "$0" "$@" {redirect}'] + words, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=False)
    if done.returncode != 0:
        raise Finding(f"{redirect}: exit code {done.returncode}")
    bench.finish(run)


def locale(bench, folder, draw):
    """Results do not depend on locale, time zone, folder or an empty environment."""
    names = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split() + ["xx_YY"]
    environment = {"LC_ALL": draw.choice(names), "TZ": draw.choice(("", "garbage", "Asia/Tokyo")),
                   "TERM": draw.choice(("", "dumb", "xterm"))}
    run = folder / "run"
    done = bench.run(bench.train_words(run, False), environment=environment, cwd=draw.choice(("/", folder)))
    bench.check_outcome(done, codes=(0,))
    bench.finish(run)


def full_disk(bench, folder, draw):
    """A small disk fills up; with room again the run goes on."""
    disk = folder / "disk"
    disk.mkdir()
    kilobytes = draw.randrange(60, 700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", disk], capture_output=True,
                      check=False).returncode != 0:
        return
    try:
        run = disk / "run"
        done = bench.run(bench.train_words(run, False))
        bench.check_outcome(done)
        subprocess.run(["mount", "-o", "remount,size=20m", disk], capture_output=True, check=True)
        bench.finish(run)
    finally:
        subprocess.run(["umount", "-l", disk], capture_output=True, check=False)


def two_at_once(bench, folder, draw):
    """A second start in the folder of a run is refused, and the run does not notice, nor a lock file that is gone."""
    run = folder / "run"
    lost = draw.random() < 0.5
    words = bench.train_words(run, False) + (["--set", "train.steps=1000000"] if lost else [])
    first = bench.start(words)
    pause(draw, 0.3)
    if lost:
        try:
            end = time.monotonic() + 20
            while first.poll() is None and not (run / "run.lock").exists():
                if time.monotonic() > end:
                    raise Finding("no run.lock after 20 s")
                time.sleep(0.005)
            pause(draw, 0.1)
            (run / "run.lock").unlink(missing_ok=True)
            second = bench.run(words, seconds=20)
        finally:
            send(first, signal.SIGKILL)
            wait_for(first, 60)
        if second.returncode != 2:
            raise Finding(f"second start without run.lock: exit code {second.returncode}")
        return
    second = bench.run(bench.train_words(run, draw.random() < 0.5) + ["--set", "model.width=24"])
    if second.returncode != 2 and first.poll() is None:
        send(first, signal.SIGKILL)
        wait_for(first, 60)
        if second.returncode == 0:
            return  # it was first
        raise Finding(f"second start: exit code {second.returncode}: {second.stderr.decode()[-300:]}")
    done = wait_for(first, 60)
    if second.returncode == 2:
        bench.check_outcome(done, codes=(0,))
        bench.finish(run)


def killed_check(bench, folder, draw):
    """A killed check of raw data leaves no packed copy in TMPDIR, but for the moment in which it has a name."""
    write_npz(folder / "raw.npz", draw.randrange(1000), frames=20000)
    left = []
    for number in range(3):
        temporary = folder / f"tmp_{number}"
        temporary.mkdir()
        process = bench.start(["check", folder / "raw.npz"], environment={"TMPDIR": str(temporary)})
        pause(draw, 0.2)
        send(process, signal.SIGKILL)
        wait_for(process, 60)
        left += list(temporary.iterdir())
    if len(left) > 1:
        raise Finding(f"left behind: {left}")


def copy_regular(source, target):
    """Findings leave FIFOs and devices, too, which are not copied."""
    if pathlib.Path(source).is_file():
        shutil.copy2(source, target, follow_symlinks=False)


ATTACKS = (kill, stop, stop_and_resume, timeout, failing_call, damaged_checkpoint, damaged_run, damaged_input,
           changed_data, hostile_output, descriptors, locale, full_disk, two_at_once, killed_check)
WEIGHTS = {damaged_input: 4, damaged_checkpoint: 3, failing_call: 3, kill: 2, stop: 2, hostile_output: 2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--source", required=True, help="the source tree")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="repeats one attack of --only")
    parser.add_argument("--only", default="", help="names of attacks, separated by commas")
    parser.add_argument("--keep", default="", help="folder for the files of findings")
    options = parser.parse_args()
    wanted = [attack for attack in ATTACKS if not options.only or attack.__name__ in options.only.split(",")]
    counts = {attack.__name__: 0 for attack in wanted}
    findings = []
    seeds = random.Random()
    with tempfile.TemporaryDirectory() as scratch:
        global PRELOAD
        PRELOAD = str(pathlib.Path(scratch) / "faults.so")
        here = pathlib.Path(__file__).resolve().parent
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", PRELOAD, here / "faults.c", "-ldl"],
                       check=True)
        bench = Bench(pathlib.Path(options.program).resolve(), options.source, scratch)
        end = time.monotonic() + options.seconds
        turns = [attack for attack in wanted for _ in range(WEIGHTS.get(attack, 1))]
        while time.monotonic() < end:
            for attack in random.Random(seeds.random()).sample(turns, len(turns)):
                seed = options.seed if options.seed is not None else seeds.randrange(1 << 32)
                folder = fresh_folder(scratch)
                counts[attack.__name__] += 1
                try:
                    attack(bench, folder, random.Random(seed))
                except Finding as finding:
                    findings.append(f"{attack.__name__}, seed {seed}: {finding}")
                    print("FOUND", findings[-1], flush=True)
                    if options.keep:
                        shutil.copytree(folder, pathlib.Path(options.keep) / f"{attack.__name__}-{seed}",
                                        symlinks=True, dirs_exist_ok=True, copy_function=copy_regular)
                shutil.rmtree(folder, ignore_errors=True)
                if time.monotonic() >= end or options.seed is not None:
                    break
            if options.seed is not None:
                break
    for name, count in counts.items():
        print(f"{name:20} {count}")
    print(f"{sum(counts.values())} attacks, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
