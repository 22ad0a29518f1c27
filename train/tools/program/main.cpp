// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/tools/program/cli.h>

int main(int argc, char** argv) { return meshgrad::run_cli(argc, argv); }
