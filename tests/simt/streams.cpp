// SPDX-License-Identifier: Apache-2.0
#include "streams.h"

#include <fmt/format.h>
#include <meshgrad/engine/error.h>

#include <algorithm>
#include <array>
#include <utility>

#include "arena.h"
#include "device.h"
#include "runner.h"

namespace simt {

Streams& streams() {
  static Streams& only = *new Streams;  // outlives what tests hold in static objects
  return only;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

namespace {

std::string& failure_of(int device) {
  static auto& first = *new std::array<std::string, kDevices>;
  return first[static_cast<size_t>(device)];
}

}  // namespace

void note_failure(int device, const std::string& message) {
  if (failure_of(device).empty()) failure_of(device) = message;
}

void check_usable(int device) {
  if (failure_of(device).empty()) return;
  throw meshgrad::device_error("simulated device", "a device on which no kernel has failed",
                               "an earlier kernel failed: " + failure_of(device),
                               "find that kernel's fault; the process cannot use this device any more");
}

void repair_devices() {
  for (int device = 0; device < kDevices; ++device) failure_of(device).clear();
}

Stream* Streams::create(int device) {
  check_usable(device);
  auto* stream = new Stream;
  stream->device = device;
  streams_.insert(stream);
  return stream;
}

void Streams::destroy(Stream* stream) {
  streams_.erase(stream);
  delete stream;
}

Stream& Streams::of(void* native) { return native == nullptr ? default_ : *static_cast<Stream*>(native); }

Stream& Streams::of_usable(void* native) {
  Stream& stream = of(native);
  check_usable(stream.device);
  return stream;
}

Stream& Streams::of_current(void* native, const char* what) {
  Stream& stream = of_usable(native);
  if (stream.device == current_device()) return stream;
  throw meshgrad::device_error(
      "simulated device", fmt::format("{} on a stream of the current device {}", what, current_device()),
      fmt::format("a stream of device {}", stream.device), "make the stream's device current first");
}

void Streams::enqueue(Stream& stream, std::function<void()> body) {
  if (stream.capture) {
    std::vector<Node>& nodes = stream.capture->graph.nodes;
    nodes.push_back({std::move(body), stream.after});
    stream.after = {nodes.size() - 1};
  } else {
    stream.queue.push_back({std::move(body), nullptr, nullptr, 0});
  }
}

void Streams::record(Stream& stream, const std::shared_ptr<Event>& event) {
  if (stream.device != event->device) {
    throw meshgrad::device_error(
        "simulated device", "an event of the stream's device",
        fmt::format("an event of device {} on a stream of device {}", event->device, stream.device),
        "create it on the stream's device");
  }
  event->capture = stream.capture;
  event->captured = stream.capture != nullptr;
  event->after = stream.after;
  if (!stream.capture) stream.queue.push_back({nullptr, event, nullptr, ++event->recorded});
}

void Streams::wait(Stream& stream, const std::shared_ptr<Event>& event) {
  const auto capture = event->capture.lock();
  if (capture && stream.capture && stream.capture != capture) refuse(&stream, "an event of another capture");
  if (capture) {  // the stream takes part in the capture
    stream.capture = capture;
    stream.after.insert(event->after.begin(), event->after.end());
  } else if (stream.capture) {
    if (event->recorded > 0) refuse(&stream, "a wait for an event that was recorded before the capture");
  } else {
    stream.queue.push_back({nullptr, nullptr, event, event->recorded});
  }
}

bool Streams::ready(const Stream& stream) const {
  if (stream.queue.empty()) return false;
  const Work& work = stream.queue.front();
  return !work.wait || work.wait->done >= work.version;
}

void Streams::run_one(Stream& stream) {
  const Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (work.record) {
    work.record->done = work.version;
    work.record->time = Clock::now();
  }
  if (!work.body) return;
  try {
    work.body();
  } catch (...) {
    for (const Work& rest : stream.queue) {
      if (rest.record) rest.record->done = rest.version;
    }
    stream.queue.clear();
    throw;
  }
}

/// The next stream to run. Lazy: the needed one, or one that it waits for.
Stream* Streams::choose(Stream& needed, bool lazy) {
  std::vector<Stream*> all;
  if (ready(default_)) all.push_back(&default_);
  for (Stream* stream : streams_) {
    if (ready(*stream)) all.push_back(stream);
  }
  if (lazy && ready(needed)) return &needed;
  if (lazy && !needed.queue.empty()) {
    const std::shared_ptr<Event>& missing = needed.queue.front().wait;
    const auto leads_there = [&](const Stream* stream) {
      return std::any_of(stream->queue.begin(), stream->queue.end(),
                         [&](const Work& work) { return work.record == missing; });
    };
    std::erase_if(all, [&](const Stream* stream) {
      return !leads_there(stream) && std::any_of(all.begin(), all.end(), leads_there);
    });
  }
  return all.empty() ? nullptr : all[next_random() % all.size()];
}

/// Also of a stream that waits for one that does.
bool Streams::waits_for_other_rank(const Stream& stream) const {
  if (stream.queue.empty() || ready(stream)) return false;
  const std::shared_ptr<Event>& missing = stream.queue.front().wait;
  return missing->from_other_rank || std::any_of(streams_.begin(), streams_.end(), [&](const Stream* other) {
           const auto records = [&](const Work& work) { return work.record == missing; };
           return other != &stream && std::any_of(other->queue.begin(), other->queue.end(), records) &&
                  waits_for_other_rank(*other);
         });
}

void Streams::pause() {
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(20));
  lock.lock();
}

void Streams::flush(Stream& stream, bool patient) {
  if (stream.queue.empty()) return;
  const OpenArena open;
  const auto begin = Clock::now();
  const bool lazy = next_random() % 2 == 0;
  while (!stream.queue.empty()) {
    Stream* const next = choose(stream, lazy);
    if (next != nullptr) {
      run_one(*next);
    } else {
      meshgrad::check_internal(waits_for_other_rank(stream) && Clock::now() - begin < std::chrono::minutes(1),
                               "a stream waits for an event that never comes");
      if (!patient) return;
      pause();
    }
  }
}

/// Not patient: the call that others wait for may be the next one of this thread.
void Streams::flush_all() {
  flush(default_, false);
  for (Stream* stream : std::vector<Stream*>(streams_.begin(), streams_.end())) flush(*stream, false);
}

void Streams::progress() {
  Stream none;
  Stream* const next = choose(none, false);
  if (next == nullptr) return pause();
  const OpenArena open;
  run_one(*next);
}

void Streams::begin_capture(Stream& stream) {
  if (stream.capture) refuse(&stream, "a second capture");
  stream.capture = std::make_shared<Capture>();
  stream.capture->thread = std::this_thread::get_id();
  stream.after.clear();
}

std::unique_ptr<Graph> Streams::end_capture(Stream& stream) {
  if (!stream.capture) {
    throw meshgrad::device_error("simulated device", "a stream under capture", "one that is not",
                                 "begin a capture first");
  }
  const std::shared_ptr<Capture> capture = stream.capture;
  std::set<size_t> joined = stream.after;
  abandon_capture(stream);
  if (capture->broken) {
    throw meshgrad::device_error("simulated device", "a capture without a call that may not be in one",
                                 "a broken capture", "see the error before this one");
  }
  const std::vector<Node>& nodes = capture->graph.nodes;
  for (size_t i = nodes.size(); i-- > 0;) {  // a node comes after earlier ones only
    if (joined.contains(i)) joined.insert(nodes[i].after.begin(), nodes[i].after.end());
  }
  if (joined.size() < nodes.size()) {
    throw meshgrad::device_error("simulated device", "a capture whose streams have all joined its first",
                                 "work that the first stream does not wait for",
                                 "record an event after it, and let the first stream wait for that");
  }
  return std::make_unique<Graph>(std::move(capture->graph));
}

void Streams::abandon_capture(Stream& stream) {
  const std::shared_ptr<Capture> capture = std::exchange(stream.capture, nullptr);
  for (Stream* other : streams_) {
    if (other->capture != capture) continue;
    other->capture = nullptr;
    other->after.clear();
  }
  stream.after.clear();
}

void run(const Graph& graph) {
  std::vector<bool> done(graph.nodes.size());
  for (size_t left = graph.nodes.size(); left > 0; --left) {
    std::vector<size_t> ready;
    for (size_t i = 0; i < done.size(); ++i) {
      const std::set<size_t>& after = graph.nodes[i].after;
      if (!done[i] && std::all_of(after.begin(), after.end(), [&](size_t node) { return done[node]; })) {
        ready.push_back(i);
      }
    }
    const size_t next = ready[next_random() % ready.size()];
    graph.nodes[next].body();
    done[next] = true;
  }
}

/// As cudaStreamCaptureModeThreadLocal.
bool Streams::capturing() const {
  const auto here = [](const std::shared_ptr<Capture>& capture) {
    return capture != nullptr && capture->thread == std::this_thread::get_id();
  };
  return here(default_.capture) || std::any_of(streams_.begin(), streams_.end(),
                                               [&](const Stream* stream) { return here(stream->capture); });
}

void Streams::refuse(Stream* stream, const char* what) {
  if (default_.capture && (stream == nullptr || stream == &default_)) default_.capture->broken = true;
  for (Stream* other : streams_) {
    if (other->capture && (stream == nullptr || stream == other)) other->capture->broken = true;
  }
  throw meshgrad::device_error("simulated device", "calls that a capture allows", what,
                               "do it before or after the capture");
}

}  // namespace simt
