# SPDX-License-Identifier: Apache-2.0
# A Spack recipe. In a repository of your own (`spack repo create`), put it at packages/meshgrad/package.py, set `git` to
# where you clone meshgrad from, then `spack install meshgrad`. Written for Spack 0.22, and never run.
from spack.package import *


class Meshgrad(CMakePackage, CudaPackage):
    """Trains graph neural networks on simulation meshes; embeds in C, C++ and Fortran."""

    homepage = "https://example.org/meshgrad"
    git = "https://example.org/meshgrad.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("fortran", default=True, description="Fortran module")
    variant("hdf5", default=True, description="Reading HDF5 files in `meshgrad convert`")
    variant("mpi", default=True, description="Training with several processes")
    variant("metis", default=False, description="Partitioning meshes by METIS")
    variant("nccl", default=False, when="+cuda", description="Sums between GPUs by NCCL")
    variant("tests", default=False, description="Tests, run by `spack install --test=root`")

    depends_on("cmake@3.25:", type="build")
    depends_on("fmt@9:")
    depends_on("toml11@3.7:4")
    depends_on("nlohmann-json@3.11:")
    depends_on("cli11@2.1:")
    depends_on("zlib-api")
    depends_on("pugixml@1.9:")
    depends_on("libzip")
    depends_on("xxhash@0.8:")
    depends_on("highway@1.0:")
    depends_on("hdf5", when="+hdf5")
    depends_on("mpi", when="+mpi")
    depends_on("metis@5", when="+metis")
    depends_on("cuda@12.4:", when="+cuda")
    depends_on("nccl@2.14:", when="+nccl")
    depends_on("doctest@2.4:", when="+tests", type="build")
    depends_on("libpng", when="+tests", type="build")

    conflicts("%gcc@:11", msg="meshgrad needs C++20 as GCC 12 has it")
    conflicts("%clang@:15", msg="meshgrad needs C++20 as clang 16 has it")

    def cmake_args(self):
        def choice(name, variant):
            return self.define(name, "ON" if self.spec.satisfies("+" + variant) else "OFF")

        args = [
            choice("MESHGRAD_FORTRAN", "fortran"),
            choice("MESHGRAD_HDF5", "hdf5"),
            choice("MESHGRAD_MPI", "mpi"),
            choice("MESHGRAD_METIS", "metis"),
            choice("MESHGRAD_CUDA", "cuda"),
            choice("MESHGRAD_NCCL", "nccl"),
            choice("MESHGRAD_TESTS", "tests"),
            self.define("MESHGRAD_BENCH", False),
        ]
        if self.spec.satisfies("+cuda") and "none" not in self.spec.variants["cuda_arch"].value:
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", ";".join(self.spec.variants["cuda_arch"].value)))
        return args
