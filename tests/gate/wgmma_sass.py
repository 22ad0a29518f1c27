#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels with products of warpgroups for sm_90a, the tests' and the library's: nvcc accepts them, tensor-core
instructions of warpgroups come out, nothing spills, and ptxas need not serialise the right kernels' products.

usage: wgmma_sass.py NVCC BUILD_FOLDER"""
import importlib.machinery
import importlib.util
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOADER = importlib.machinery.SourceFileLoader("cuda_resources", str(ROOT / "tests" / "cuda" / "cuda-resources"))
resources = importlib.util.module_from_spec(importlib.util.spec_from_loader("cuda_resources", LOADER))
LOADER.exec_module(resources)

HGMMA = (0x9f0, 0xdf0)  # the low 12 bits of the instruction: x in shared memory, in registers
RIGHT = {  # of each source; of the tests': a in registers, in shared memory
    "tests/simt/planted_wgmma.cu": ["product_kernelILb0ELNS2_7MistakeE0E", "product_kernelILb1ELNS2_7MistakeE0E"],
    "kernels/cuda/fused/weight_gradients_sm90a.cu": ["weight_gradients_wgmma_kernelINS_4halfE",
                                                     "weight_gradients_wgmma_kernelINS_8bfloat16E"]}


def check(nvcc, build, source, kernels):
    with tempfile.TemporaryDirectory() as folder:
        cubin = pathlib.Path(folder) / "wgmma.cubin"
        done = subprocess.run(
            [nvcc, "-std=c++20", "--expt-relaxed-constexpr", "-arch=sm_90a", "-I" + build + "/include/engine",
             "-I" + build + "/include/kernels", "-Xptxas", "-v", "-cubin", "-o", cubin,
             ROOT / source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout)
        elf = resources.Elf(cubin.read_bytes())
    for kernel in kernels:
        name = next((n for n, _ in elf.sections if n.startswith(".text.") and kernel in n), None)
        assert name, "no kernel " + kernel
        code = elf.bytes(name)
        products = sum(struct.unpack_from("<Q", code, at)[0] & 0xfff in HGMMA for at in range(0, len(code), 16))
        report = done.stdout[done.stdout.index("Compiling entry function '" + name.removeprefix(".text.")):]
        spills = re.search(r"(\d+) bytes spill stores", report)[1]
        serialised = [line for line in done.stdout.splitlines() if "serialized" in line and kernel in line]
        print(f"{kernel}: {products} products, {spills} bytes spilled")
        assert products > 0 and spills == "0" and not serialised, "\n".join(serialised) or kernel


for path, names in RIGHT.items():
    check(*sys.argv[1:], path, names)
