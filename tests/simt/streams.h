// SPDX-License-Identifier: Apache-2.0
// The queues of the simulated device. Work waits in its stream until its result is needed: by a
// synchronisation, a copy that the host waits for, a query of an event. Then streams take turns in seeded
// random order, as far as events allow, or only those run that are needed: work that no event orders may run
// late.
#pragma once
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace simt {

using Clock = std::chrono::steady_clock;

struct Capture;

/// The simulated devices share the arena's memory, but not the right to use it.
inline constexpr int kDevices = 2;
/// The calling thread's current device, as of cudaSetDevice.
int& current_device();

/// Makes a device unusable; the first failure stays.
void note_failure(int device, const std::string& message);
/// Throws DeviceError for a device on which a kernel has failed.
void check_usable(int device);

struct Event {
  int device = 0;
  int64_t recorded = 0;  ///< how often it was recorded, and how many of those records have run
  int64_t done = 0;
  bool from_other_rank = false;  ///< comes when another thread of the process has made a call
  Clock::time_point time;
  std::weak_ptr<Capture> capture;  ///< where it was last recorded, if that was in a capture
  bool captured = false;           ///< also after that capture has ended
  std::set<size_t> after;          ///< the nodes of the capture that it comes after
};

struct Work {
  std::function<void()> body;
  std::shared_ptr<Event> record;
  std::shared_ptr<Event> wait;
  int64_t version = 0;  ///< of the event
};

/// What a capture recorded: each node runs after those that its stream, or an event, put before it. Nothing
/// else orders them.
struct Node {
  std::function<void()> body;
  std::set<size_t> after;
};
struct Graph {
  std::vector<Node> nodes;
};
/// Runs the nodes in a seeded random order that their dependencies allow.
void run(const Graph& graph);

struct Capture {
  Graph graph;
  std::thread::id thread;  ///< that began it: others may go on with what a capture forbids
  bool broken = false;
};

struct Stream {
  int device = 0;
  std::deque<Work> queue;
  std::shared_ptr<Capture> capture;
  std::set<size_t> after;  ///< the nodes of the capture that its next one comes after
};

/// All calls hold the lock, once: the device runs one operation at a time.
class Streams {
 public:
  std::recursive_mutex lock;

  Stream* create(int device);
  void destroy(Stream* stream);
  /// Null is a stream of its own on device 0, not the one that others wait for.
  Stream& of(void* native);
  /// The same for calls that fail on a device that a kernel has made unusable.
  Stream& of_usable(void* native);
  /// The same for calls that also need the stream's device to be current.
  Stream& of_current(void* native, const char* what);

  void enqueue(Stream& stream, std::function<void()> body);
  void record(Stream& stream, const std::shared_ptr<Event>& event);
  void wait(Stream& stream, const std::shared_ptr<Event>& event);
  /// Runs until the stream is empty; waits for the calls of other ranks if `patient`, else leaves what needs
  /// them. Throws what its work threw; the rest of the stream is then forgotten.
  void flush(Stream& stream, bool patient = true);
  void flush_all();
  /// Runs some work, if there is any: for hosts that poll. Otherwise lets other threads take the lock.
  void progress();

  void begin_capture(Stream& stream);
  std::unique_ptr<Graph> end_capture(Stream& stream);
  void abandon_capture(Stream& stream);
  bool capturing() const;
  /// Ends a capture with an error: `what` may not be done on a stream under capture.
  [[noreturn]] void refuse(Stream* stream, const char* what);

 private:
  bool ready(const Stream& stream) const;
  bool waits_for_other_rank(const Stream& stream) const;
  void pause();
  void run_one(Stream& stream);
  Stream* choose(Stream& needed, bool lazy);

  Stream default_;
  std::set<Stream*> streams_;
};

Streams& streams();

}  // namespace simt
