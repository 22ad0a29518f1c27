// SPDX-License-Identifier: Apache-2.0
// convert() from outside: usage convert_files INPUT OUTPUT.mgd
#include <meshgrad/train/convert/convert.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  meshgrad::ConvertOptions options;
  options.input = argv[1];
  options.output = argv[2];
  const meshgrad::ConvertReport report = meshgrad::convert(options);
  const meshgrad::Dataset dataset = meshgrad::Dataset::open(options.output);
  std::printf("%ld trajectories of %s, %zu splits\n", static_cast<long>(report.trajectories),
              report.format.c_str(), dataset.splits().size());
  return report.trajectories > 0 ? 0 : 1;
}
