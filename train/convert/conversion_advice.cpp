// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/conversion_advice.h>

#include <utility>

namespace meshgrad {
namespace {

struct Advice {
  std::string_view part;  ///< of the warning's text
  std::string_view why, remedy;
  bool lasts = false;
};
constexpr Advice kAdvice[] = {
    {"not evenly spaced", "a model learns the change of one time step, and these steps differ",
     "write frames at equal distances of time; --dt S says the distance where the times are wrong", true},
    {"edges listed again", "each edge is read once; the parts of a graph may have been joined twice",
     "list each edge once, or once in each direction", true},
    {"edges from a node to itself", "they are left out, since a node reads its own state anyway",
     "leave them out, or look for node numbers that begin at 1", true},
    {"there are no node types",
     "values at inflows and walls are predicted, although the solver prescribes them",
     "convert with --node-types ARRAY"},
    {"mesh and fields are those of", "a model is tested there with what it was trained on",
     "leave one of the two out, or put both into one split"},
    {"normalised by", "one wrong value outweighs all others in means, deviations and the loss",
     "repair the value in the input and convert again"},
    {"the unit may be another", "a model cannot tell a unit from a size, and normalisers mix the two",
     "convert these files' values to the unit of the others, or leave them out"},
    {"one frame only", "a change in time cannot be learned from it", "write more frames, or leave it out"},
    {"split by time", "errors then tell of later times of the same trajectories, not of other ones",
     "convert more trajectories, or say it by --by time"},
    {"left out", "a model cannot read what is left out", "nothing, if it is not needed"},
    {"not used", "a model cannot read what is not used", "nothing, if it is not needed"},
    {"read as by", "the names of the arrays were guessed", "compare it with what you wrote; --map says it"},
};

const Advice* advice_on(std::string_view warning) {
  for (const Advice& advice : kAdvice)
    if (warning.find(advice.part) != std::string_view::npos) return &advice;
  return nullptr;
}

}  // namespace

Finding finding_of_warning(const std::string& warning) {
  const size_t end = warning.starts_with('[') ? warning.find("] ") : std::string::npos;
  const bool placed = end != std::string::npos;
  const Advice* advice = advice_on(warning);
  std::string what = placed ? warning.substr(end + 2) : warning;
  if (const size_t fix = what.find("; fix: "); advice != nullptr && fix != std::string::npos)
    what.erase(fix, what.find(" (and ", fix) - fix);  // the remedy says it
  return {Finding::Severity::warning, placed ? warning.substr(1, end - 1) : "the conversion", std::move(what),
          std::string(advice ? advice->why : "the conversion found it; results on this data may be doubtful"),
          std::string(advice ? advice->remedy : "repair the input and convert again")};
}

bool lasts_in_packed_file(std::string_view warning) {
  const Advice* advice = advice_on(warning);
  return advice != nullptr && advice->lasts;
}

}  // namespace meshgrad
