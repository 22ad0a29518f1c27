// SPDX-License-Identifier: Apache-2.0
// LD_PRELOAD library: makes the N-th input or output call of a process fail, or kills the process there.
//   ATTACK_CALL    number of the call, counted from 1 over all calls below that concern files of ATTACK_FOLDER
//   ATTACK_ERRNO   its errno; 0: kills the process before the call; -1: writes one byte of a longer write
//   ATTACK_ON      1: also every later call fails (a disk that stays full)
//   ATTACK_FOLDER  only files whose path contains this text; descriptors are traced to their files
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_int calls;

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text == NULL ? otherwise : atoi(text);
}

static int concerns(const char* path) {
  const char* folder = getenv("ATTACK_FOLDER");
  return folder != NULL && path != NULL && strstr(path, folder) != NULL;
}

static int concerns_descriptor(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return concerns(path);
}

/// Whether this call fails, with errno set; -1: shortened.
static int fails(int concerned) {
  if (!concerned) return 0;
  const int call = atomic_fetch_add(&calls, 1) + 1;
  const int wanted = number("ATTACK_CALL", 0);
  if (wanted == 0 || call < wanted || (call > wanted && number("ATTACK_ON", 0) == 0)) return 0;
  const int error = number("ATTACK_ERRNO", EIO);
  if (error == 0) kill(getpid(), SIGKILL);
  if (error < 0) return -1;
  errno = error;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int open_as(const char* symbol, const char* path, int flags, mode_t mode) {
  if ((flags & (O_WRONLY | O_RDWR)) != 0 && fails(concerns(path)) > 0) return -1;
  return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, symbol))(path, flags, mode);
}
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_as("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_as("open64", path, flags, mode);
}
ssize_t write(int descriptor, const void* bytes, size_t count) {
  const int failed = fails(concerns_descriptor(descriptor));
  if (failed > 0) return -1;
  return REAL(write)(descriptor, bytes, failed < 0 && count > 1 ? 1 : count);
}
int fsync(int descriptor) { return fails(concerns_descriptor(descriptor)) > 0 ? -1 : REAL(fsync)(descriptor); }
int ftruncate(int descriptor, off_t length) {
  return fails(concerns_descriptor(descriptor)) > 0 ? -1 : REAL(ftruncate)(descriptor, length);
}
int flock(int descriptor, int operation) {
  return fails(concerns_descriptor(descriptor)) > 0 ? -1 : REAL(flock)(descriptor, operation);
}
int rename(const char* from, const char* to) { return fails(concerns(to)) > 0 ? -1 : REAL(rename)(from, to); }
int unlink(const char* path) { return fails(concerns(path)) > 0 ? -1 : REAL(unlink)(path); }
int link(const char* from, const char* to) { return fails(concerns(to)) > 0 ? -1 : REAL(link)(from, to); }
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  return fails(concerns(to)) > 0 ? -1 : REAL(linkat)(from_folder, from, to_folder, to, flags);
}
int mkdir(const char* path, mode_t mode) { return fails(concerns(path)) > 0 ? -1 : REAL(mkdir)(path, mode); }
