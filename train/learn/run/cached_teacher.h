// SPDX-License-Identifier: Apache-2.0
// The file of distill.cache: written once, by one process, before training.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/train/learn/run/run_event.h>
#include <meshgrad/train/learn/task/task.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace meshgrad {

/// Opens the cache of the task's teacher. Where the file is not there, rank 0 computes it from the whole
/// training split, in batches within the largest training batch, and telling how far it is; or it waits for
/// another process that does. Afterwards the model of the teacher is in no memory. Collective. Null: `stop`
/// said so on some rank; then the file is not there. Throws what load_teacher and TeacherCache throw, and
/// DataError for a prediction that is not finite.
std::shared_ptr<const TeacherCache> open_teacher_cache(
    Runtime& runtime, Ranks& ranks, const Config& config, const Task& task, const std::function<bool()>& stop,
    const std::function<void(std::string text, RunEvent::Fields fields)>& tell);

/// Of the predictions in such a file.
int64_t teacher_cache_bytes(const Config& config, const Task& task);

}  // namespace meshgrad
