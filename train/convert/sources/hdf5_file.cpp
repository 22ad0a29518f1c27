// SPDX-License-Identifier: Apache-2.0
#ifdef MESHGRAD_HAVE_HDF5
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/hdf5_dataset.h>

namespace meshgrad {
namespace {

constexpr const char* kWithoutLocks = "or, if no program writes the file, set HDF5_USE_FILE_LOCKING=FALSE";

/// The first bytes of an HDF5 file from its signature on, which is at 0 or a power of two from 512 on.
std::optional<std::array<unsigned char, 12>> superblock_of(int descriptor) {
  constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
  std::array<unsigned char, 12> start{};
  for (off_t at = 0; pread(descriptor, start.data(), start.size(), at) == static_cast<ssize_t>(start.size());
       at = at == 0 ? 512 : at * 2)
    if (std::memcmp(start.data(), kSignature.data(), kSignature.size()) == 0) return start;
  return std::nullopt;
}

/// Why the library does not open a file.
DataError why_closed(const std::filesystem::path& path) {
  const std::string name = path.string();
  const int descriptor = open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return data_error(name, "a readable file", std::strerror(errno), "check the path and its permissions");
  struct Closed {
    int descriptor;
    ~Closed() { close(descriptor); }
  } const closed{descriptor};
  std::array<char, 3> classic{};
  if (pread(descriptor, classic.data(), classic.size(), 0) == 3 &&
      std::string_view(classic.data(), classic.size()) == "CDF") {
    return data_error(name, "an HDF5 file", "a file of NetCDF-3",
                      "nccopy -k netCDF-4 makes HDF5 of it; scripts/to-vtu reads Exodus");
  }
  const auto start = superblock_of(descriptor);
  if (!start) {
    return data_error(name, "an HDF5 file", "a file without the signature of HDF5",
                      "check the path, or name the format: meshgrad convert --format NAME");
  }
  if (flock(descriptor, LOCK_SH | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return data_error(name, "an HDF5 file that no program writes", "a lock that another program holds",
                        std::string("wait until the program has closed it, ") + kWithoutLocks);
    }
    return data_error(name, "a file system with locks (flock)", std::strerror(errno),
                      std::string("copy the file to another file system, ") + kWithoutLocks);
  }
  constexpr unsigned kWriting = 1U | 4U;  // of the flags of superblock 3: open for writing, or by SWMR
  if ((*start)[8] >= 3 && ((*start)[11] & kWriting) != 0) {
    return data_error(name, "a file that its writer has closed",
                      "the mark that it is open for writing, which a killed program leaves",
                      "if no program writes it, h5clear -s removes the mark");
  }
  return data_error(name, "an HDF5 file", "damaged bytes, or a file that is cut short",
                    "copy it again, or write it again");
}

}  // namespace

uint64_t unpacked_bytes(hid_t group, const char* name) {
  const Hdf5Handle dataset(H5Lexists(group, name, H5P_DEFAULT) > 0 ? H5Dopen2(group, name, H5P_DEFAULT) : -1,
                           H5Dclose);
  const Hdf5Handle space(dataset ? H5Dget_space(dataset.id()) : -1, H5Sclose);
  const Hdf5Handle type(dataset ? H5Dget_type(dataset.id()) : -1, H5Tclose);
  if (!space || !type) return 0;
  const hssize_t count = H5Sget_simple_extent_npoints(space.id());
  constexpr hsize_t kMostRatio = 1032;  // of deflate
  const hsize_t stored = H5Dget_storage_size(dataset.id());
  const bool believed = count > 0 && static_cast<hsize_t>(count) / kMostRatio <= stored + 4096;
  return believed ? static_cast<uint64_t>(count) * std::max<size_t>(H5Tget_size(type.id()), 4) : 0;
}

Hdf5Handle open_hdf5_file(const std::filesystem::path& path) {
  Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!file) throw why_closed(path);
  return file;
}

}  // namespace meshgrad
#endif
