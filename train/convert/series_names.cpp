// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/series_names.h>

namespace meshgrad {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

size_t end_of_digits(std::string_view text, size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

/// Where the number that begins with a digit at `at` ends: "12", or also "0.5" and "1e-3".
size_t end_of_number(std::string_view text, size_t at, bool decimal) {
  size_t end = end_of_digits(text, at);
  if (!decimal) return end;
  if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1]))
    end = end_of_digits(text, end + 1);
  size_t exponent = end;
  if (exponent < text.size() && (text[exponent] == 'e' || text[exponent] == 'E')) ++exponent;
  if (exponent == end) return end;
  if (exponent < text.size() && (text[exponent] == '-' || text[exponent] == '+')) ++exponent;
  const size_t last = end_of_digits(text, exponent);
  return last > exponent && (last == text.size() || !is_letter(text[last])) ? last : end;
}

/// A name as text and numbers by turns: texts[0] numbers[0] texts[1] .. texts[n].
struct Parts {
  std::vector<std::string> texts, numbers;
};

Parts parts_of(std::string_view name, bool decimal) {
  Parts parts;
  size_t text = 0;
  for (size_t at = 0; at < name.size(); ++at) {
    if (!is_digit(name[at])) continue;
    // A sign follows a separator: "t_-5"; in "run-5" it is one.
    const bool sign = decimal && at > text && (name[at - 1] == '-' || name[at - 1] == '+') &&
                      (at < 2 || name[at - 2] == '_' || name[at - 2] == ' ' || name[at - 2] == '=');
    const size_t begin = sign ? at - 1 : at, end = end_of_number(name, at, decimal);
    parts.texts.emplace_back(name.substr(text, begin - text));
    parts.numbers.emplace_back(name.substr(begin, end - begin));
    text = end;
    at = end - 1;
  }
  parts.texts.emplace_back(name.substr(text));
  return parts;
}

double value_of(std::string_view number) {
  if (number.starts_with('+')) number.remove_prefix(1);
  double value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);  // too large a one keeps 0
  return value;
}

bool is_whole(std::string_view number) { return std::ranges::all_of(number, is_digit); }

/// The order of names by their numbers, and by themselves where these are equal. Whole numbers have any
/// length.
class NumberOrder {
 public:
  explicit NumberOrder(const std::vector<std::string>& numbers)
      : whole_(std::ranges::all_of(numbers, is_whole)) {}

  bool before(std::string_view a, std::string_view b, const std::string& name_a,
              const std::string& name_b) const {
    const auto order = whole_ ? compare_whole(a, b) : compare_values(a, b);
    return order == 0 ? name_a < name_b : order < 0;
  }

 private:
  static std::weak_ordering compare_whole(std::string_view a, std::string_view b) {
    a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
    b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
    return a.size() != b.size() ? a.size() <=> b.size() : a <=> b;
  }
  static std::weak_ordering compare_values(std::string_view a, std::string_view b) {
    const double x = value_of(a), y = value_of(b);
    return x < y   ? std::weak_ordering::less
           : x > y ? std::weak_ordering::greater
                   : std::weak_ordering::equivalent;
  }
  bool whole_;
};

/// Whether one number could be that of a decimal that is printed by one format: all with as many places, or
/// none with a 0 at the end but "1.0".
bool are_decimals(const std::vector<std::string>& numbers) {
  std::set<size_t> places;
  bool shortest = true;
  for (const std::string& number : numbers) {
    if (number.find_first_of("eE") != std::string::npos) return true;
    const size_t point = number.find('.');
    places.insert(point == std::string::npos ? 0 : number.size() - point - 1);
    shortest = shortest && (point == std::string::npos || number.back() != '0' || number.ends_with(".0"));
  }
  return shortest || places.size() == 1;
}

/// Whether a counter prints these: of one width, or without leading zeros.
bool are_counted(const std::vector<std::string>& numbers) {
  std::set<size_t> widths;
  bool plain = true;
  for (const std::string& number : numbers) {
    widths.insert(number.size());
    plain = plain && (number.size() == 1 || number.front() != '0');
  }
  return plain || widths.size() == 1;
}

std::string without_case(std::string_view text) {
  std::string small(text);
  for (char& c : small) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return small;
}

/// The last word of a text.
std::string last_word(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_letter(text[end - 1])) --end;
  size_t begin = end;
  while (begin > 0 && is_letter(text[begin - 1])) --begin;
  return without_case(text.substr(begin, end - begin));
}

/// Whether it is one that parallel programs write before the number of a process.
bool says_rank(std::string_view text) {
  constexpr std::array<std::string_view, 8> kWords{"rank",  "proc", "processor", "part",
                                                   "piece", "pe",   "subdomain", "partition"};
  return std::ranges::find(kWords, last_word(text)) != kWords.end();
}

/// Whether it says that the number counts steps.
bool says_step(std::string_view text) {
  constexpr std::array<std::string_view, 14> kWords{"step",      "steps",    "timestep", "tstep", "time",
                                                    "times",     "t",        "ts",       "frame", "frames",
                                                    "iteration", "snapshot", "iter",     "dump"};
  return std::ranges::find(kWords, last_word(text)) != kWords.end();
}

/// Names of one family, cut into numbers in one way.
class NumberedNames {
 public:
  NumberedNames(std::span<const std::string> names, const std::vector<size_t>& members, bool decimal)
      : names_(names), members_(members) {
    for (const size_t member : members) rows_.push_back(parts_of(names[member], decimal));
    for (size_t at = 0; at < rows_.front().numbers.size(); ++at) columns_.push_back(column(at));
    find_axes();
  }

  bool alike() const {
    return std::ranges::all_of(rows_, [&](const Parts& row) { return row.texts == rows_.front().texts; });
  }
  const std::vector<std::vector<std::string>>& columns() const { return columns_; }

  std::vector<SeriesReading> readings() const {
    std::vector<SeriesReading> all;
    for (const std::vector<size_t>& axis : axes_) {
      std::vector<SeriesReading> of_axis;
      for (const size_t at : axis) {
        SeriesReading reading = read(axis, at);
        const bool known = std::ranges::any_of(
            of_axis, [&](const SeriesReading& other) { return other.groups == reading.groups; });
        if (!known && std::ranges::any_of(reading.groups, [](const auto& group) { return group.size() > 1; }))
          of_axis.push_back(std::move(reading));
      }
      std::ranges::move(of_axis, std::back_inserter(all));
    }
    return all;
  }

 private:
  std::vector<std::string> column(size_t at) const {
    std::vector<std::string> numbers;
    numbers.reserve(rows_.size());
    for (const Parts& row : rows_) numbers.push_back(at < row.numbers.size() ? row.numbers[at] : "");
    return numbers;
  }

  static bool change_together(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    std::map<std::string, std::string> forth, back;
    for (size_t i = 0; i < a.size(); ++i) {
      if (forth.try_emplace(a[i], b[i]).first->second != b[i]) return false;
      if (back.try_emplace(b[i], a[i]).first->second != a[i]) return false;
    }
    return true;
  }

  void find_axes() {
    for (size_t at = 0; at < columns_.size(); ++at) {
      const auto& numbers = columns_[at];
      if (std::ranges::all_of(numbers, [&](const std::string& one) { return one == numbers.front(); }))
        continue;
      const auto axis = std::ranges::find_if(axes_, [&](const std::vector<size_t>& known) {
        return change_together(columns_[known.front()], numbers);
      });
      if (axis == axes_.end()) {
        axes_.push_back({at});
      } else {
        axis->push_back(at);
      }
    }
  }

  SeriesReading read(const std::vector<size_t>& axis, size_t frame) const {
    SeriesReading reading;
    std::map<std::vector<std::string>, std::vector<size_t>> groups;  // by what tells simulations apart
    const auto in_axis = [&](size_t at) { return std::ranges::find(axis, at) != axis.end(); };
    for (size_t row = 0; row < rows_.size(); ++row) {
      std::vector<std::string> key;
      for (size_t at = 0; at < columns_.size(); ++at)
        if (!in_axis(at)) key.push_back(columns_[at][row]);
      groups[key].push_back(row);
    }
    const NumberOrder order(columns_[frame]);
    for (auto& [key, rows] : groups) {
      std::ranges::sort(rows, [&](size_t a, size_t b) {
        return order.before(columns_[frame][a], columns_[frame][b], names_[members_[a]], names_[members_[b]]);
      });
      std::vector<size_t>& group = reading.groups.emplace_back();
      for (const size_t row : rows) group.push_back(members_[row]);
    }
    std::ranges::sort(reading.groups, {}, [&](const auto& group) { return names_[group.front()]; });
    for (size_t at = 0; at <= columns_.size(); ++at) {
      reading.pattern += rows_.front().texts[at];
      if (at == columns_.size()) break;
      const bool changes = std::ranges::any_of(
          axes_, [&](const auto& one) { return std::ranges::find(one, at) != one.end(); });
      const bool tells_apart = changes && !in_axis(at);
      reading.frame_before_case = reading.frame_before_case || (tells_apart && at > frame);
      const bool by_rank = says_rank(rows_.front().texts[at]);
      reading.cases_named_by_rank = reading.cases_named_by_rank || (tells_apart && by_rank);
      reading.frames_named_by_rank = reading.frames_named_by_rank || (at == frame && by_rank);
      if (at == frame) reading.frames_named_by_step = says_step(rows_.front().texts[at]);
      reading.pattern += at == frame ? "{frame}" : tells_apart ? "{case}" : changes ? "*" : columns_[at][0];
    }
    return reading;
  }

  std::span<const std::string> names_;
  const std::vector<size_t>& members_;
  std::vector<Parts> rows_;
  std::vector<std::vector<std::string>> columns_;  // of numbers, over the names
  std::vector<std::vector<size_t>> axes_;          // columns that change, those that do so together in one
};

std::vector<SeriesReading> readings_of(std::span<const std::string> names,
                                       const std::vector<size_t>& members) {
  const NumberedNames decimal(names, members, true), whole(names, members, false);
  std::vector<SeriesReading> found = decimal.readings();
  // Where no number is a decimal the two are the same; names of one shape as decimals need not be one as
  // whole numbers ("1" and "1.5").
  if (!whole.alike() || whole.columns() == decimal.columns()) return found;
  const auto scientific = [](const std::vector<std::string>& numbers) {
    return std::ranges::any_of(numbers, [](const std::string& number) {
      return number.find("e-") != std::string::npos || number.find("e+") != std::string::npos;
    });
  };
  if (std::ranges::any_of(decimal.columns(), scientific) ||
      !std::ranges::all_of(whole.columns(), are_counted))
    return found;
  std::vector<SeriesReading> counted = whole.readings();
  if (!std::ranges::all_of(decimal.columns(), are_decimals)) return counted;
  std::erase_if(counted, [&](const SeriesReading& reading) {
    const bool same = std::ranges::any_of(
        found, [&](const SeriesReading& other) { return other.groups == reading.groups; });
    return same || std::ranges::any_of(reading.groups, [](const auto& group) { return group.size() < 2; });
  });
  std::ranges::move(counted, std::back_inserter(found));
  return found;
}

enum class Piece { text, frame, other, ignored };

/// "run_{case}_{frame}" as pieces; nothing for what is no pattern.
std::optional<std::vector<std::pair<Piece, std::string>>> pieces_of(std::string_view pattern) {
  constexpr std::string_view kFrame = "{frame}", kCase = "{case}";
  std::vector<std::pair<Piece, std::string>> pieces;
  int frames = 0;
  while (!pattern.empty()) {
    const Piece piece = pattern.starts_with(kFrame)  ? Piece::frame
                        : pattern.starts_with(kCase) ? Piece::other
                        : pattern.front() == '*'     ? Piece::ignored
                                                     : Piece::text;
    const size_t size = piece == Piece::frame ? kFrame.size() : piece == Piece::other ? kCase.size() : 1;
    if (piece == Piece::text && !pieces.empty() && pieces.back().first == Piece::text) {
      pieces.back().second += pattern.front();
    } else {
      pieces.emplace_back(piece, std::string(pattern.substr(0, size)));
    }
    frames += piece == Piece::frame ? 1 : 0;
    pattern.remove_prefix(size);
  }
  if (frames != 1) return std::nullopt;
  return pieces;
}

struct Match {
  std::string frame;
  std::vector<std::string> cases;
};

/// The shortest texts that make a name of pieces. Each pair of a piece and a place in the name is tried once.
class Matcher {
 public:
  Matcher(std::span<const std::pair<Piece, std::string>> pieces, std::string_view name)
      : pieces_(pieces), name_(name), fails_(pieces.size() * (name.size() + 1)) {}

  std::optional<Match> match() {
    return matches(0, 0) ? std::optional<Match>(std::move(found_)) : std::nullopt;
  }

 private:
  /// Whether the pieces from `piece` on make the name from `at` on.
  bool matches(size_t piece, size_t at) {
    if (piece == pieces_.size()) return at == name_.size();
    const size_t state = piece * (name_.size() + 1) + at;
    if (fails_[state]) return false;
    const auto& [kind, text] = pieces_[piece];
    const bool found = kind == Piece::text
                           ? name_.substr(at).starts_with(text) && matches(piece + 1, at + text.size())
                       : kind == Piece::frame ? match_frame(piece, at)
                                              : match_any(piece, at);
    fails_[state] = !found;
    return found;
  }

  bool match_frame(size_t piece, size_t at) {
    const size_t digit = at + (at < name_.size() && (name_[at] == '-' || name_[at] == '+') ? 1 : 0);
    if (digit >= name_.size() || !is_digit(name_[digit])) return false;
    for (const bool decimal : {true, false}) {
      const size_t end = end_of_number(name_, digit, decimal);
      found_.frame = std::string(name_.substr(at, end - at));
      if (matches(piece + 1, end)) return true;
    }
    return false;
  }

  bool match_any(size_t piece, size_t at) {
    for (size_t end = at; end <= name_.size(); ++end) {
      const size_t before = found_.cases.size();
      if (pieces_[piece].first == Piece::other) found_.cases.emplace_back(name_.substr(at, end - at));
      if (matches(piece + 1, end)) return true;
      found_.cases.resize(before);
    }
    return false;
  }

  std::span<const std::pair<Piece, std::string>> pieces_;
  std::string_view name_;
  std::vector<bool> fails_;  // [pieces, places in the name]
  Match found_;
};

}  // namespace

std::vector<SeriesFamily> families_of(std::span<const std::string> names) {
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return names[i]; });
  std::map<std::vector<std::string>, size_t> places;
  std::vector<SeriesFamily> families;
  for (const size_t i : order) {
    const auto [place, added] = places.try_emplace(parts_of(names[i], true).texts, families.size());
    if (added) families.emplace_back();
    families[place->second].members.push_back(i);
  }
  for (SeriesFamily& family : families)
    if (family.members.size() > 1) family.readings = readings_of(names, family.members);
  return families;
}

SeriesReading parse_series(const std::string& pattern, std::span<const std::string> names) {
  const auto pieces = pieces_of(pattern);
  if (!pieces) {
    throw config_error("series", "a pattern of names with one {frame}", pattern,
                       "write for example run_{case}_{frame}.vtu");
  }
  std::map<std::vector<std::string>, std::vector<std::pair<std::string, size_t>>> groups;
  for (size_t i = 0; i < names.size(); ++i)
    if (const auto found = Matcher(*pieces, names[i]).match())
      groups[found->cases].emplace_back(found->frame, i);
  SeriesReading reading{.pattern = pattern};
  std::vector<std::string> numbers;
  for (const auto& [cases, members] : groups)
    for (const auto& member : members) numbers.push_back(member.first);
  const NumberOrder order(numbers);
  for (auto& [cases, members] : groups) {
    std::ranges::sort(members, [&](const auto& a, const auto& b) {
      return order.before(a.first, b.first, names[a.second], names[b.second]);
    });
    const auto same = std::ranges::adjacent_find(members, [&](const auto& a, const auto& b) {
      return !order.before(a.first, b.first, "", "") && !order.before(b.first, a.first, "", "");
    });
    if (same != members.end()) {
      throw config_error("series", "one file of each frame",
                         fmt::format("{} and {}", names[same->second], names[std::next(same)->second]),
                         "write {case} where their names differ");
    }
    std::vector<size_t>& group = reading.groups.emplace_back();
    for (const auto& member : members) group.push_back(member.second);
  }
  std::ranges::sort(reading.groups, {}, [&](const auto& group) { return names[group.front()]; });
  return reading;
}

}  // namespace meshgrad
