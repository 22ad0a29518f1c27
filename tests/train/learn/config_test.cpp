// SPDX-License-Identifier: Apache-2.0
#include "train/scratch_directory.h"

#include <doctest/doctest.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <algorithm>
#include <bit>
#include <clocale>
#include <cmath>
#include <locale>
#include <random>
#include <set>

namespace meshgrad {
namespace {

/// What parse_config says about a faulty text; empty when it finds nothing.
std::string fault_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_config(text, "run.toml", overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

void check_has(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  CHECK(text.find(part) != std::string::npos);
}

/// A value that differs from the default and is in range.
struct OtherValue {
  Config& config;
  std::string operator()(const BoolKey& type) const { return type.member(config) ? "false" : "true"; }
  std::string operator()(const IntegerKey& type) const {
    const int64_t value = type.member(config);
    return std::to_string(value < type.maximum ? value + 1 : value - 1);
  }
  std::string operator()(const FloatKey& type) const {
    const double middle = type.member(config) / 2;
    return toml_number(middle > type.minimum ? middle : type.maximum / 3);
  }
  std::string operator()(const FieldNumbersKey& type) const {
    return type.named == "fields" ? "velocity=0.5" : "5=0.5";
  }
  std::string operator()(const TextKey& type) const { return type.accepts != nullptr ? "cpu" : "a text"; }
  std::string operator()(const TextListKey& type) const {
    return type.names != nullptr ? std::string(type.names().front()) : "pressure,velocity";
  }
  std::string operator()(const IntegerListKey&) const { return "[4]"; }
  std::string operator()(const FloatListKey&) const { return "[0.5,2.0]"; }
  std::string operator()(const SizeKey&) const { return "3GiB"; }
  std::string operator()(const ChoiceKey& type) const {
    for (const Choice& choice : type.choices) {
      if (choice.value != type.get(config)) return std::string(choice.name);
    }
    return std::string(type.choices.front().name);
  }
};

TEST_CASE("an empty file gives the defaults") {
  const Config config = parse_config("", "run.toml");
  CHECK(to_toml(config) == to_toml(Config{}));
  CHECK(config.train.steps == 100000);
  CHECK(config.precision == DType::f32);
}

TEST_CASE("every key survives a round trip") {
  for (const ConfigKey& key : config_keys()) {
    const std::string name = full_name(key);
    CAPTURE(name);
    Config defaults;
    std::vector<std::string> overrides = {name + "=" + std::visit(OtherValue{defaults}, key.type)};
    if (name == "task.name") overrides.emplace_back("train.noise=0.5");  // its default follows the task
    if (name == "data.node_split")
      overrides.insert(overrides.end(), {"task.name=node_classification", "train.noise=0.02"});
    const std::set<std::string> of_graphs{"data.classes", "model.pool",       "loss.class_weights",
                                          "data.embed",   "data.identifiers", "model.embedding"};
    if (of_graphs.contains(name) || name.starts_with("distill."))
      overrides.insert(overrides.end(), {"task.name=graph_classification", "train.noise=0.02"});
    if (name == "distill.cache") overrides.back() = "train.noise=0";
    if (name == "data.identifiers" || name == "model.embedding") overrides.emplace_back("data.embed=x");
    if (name.starts_with("data.link_") || name.starts_with("vgae."))
      overrides.insert(overrides.end(),
                       {"task.name=link_reconstruction", "train.noise=0.02", "data.targets=[]"});
    if (name.starts_with("vgae.")) overrides.emplace_back("model.name=vgae");
    if (name.starts_with("distill.")) overrides.insert(overrides.begin(), "distill.teacher=runs/teacher");
    if (name.starts_with("curriculum.")) {
      const bool model = name == "curriculum.model";
      overrides.insert(overrides.begin(),
                       {"train.epochs=5", model ? "curriculum.score=model" : "curriculum.score=loss"});
    }
    if (name.starts_with("gat.")) overrides.emplace_back("model.name=gat");
    if (name.ends_with(".heads")) overrides.front() = name + "=8";  // a divisor of model.width
    if (name == "vgae.heads") overrides.emplace_back("vgae.encoder=attention");
    if (name.starts_with("model.slice_") || name == "model.slices_every")
      overrides = {name + "=4", "model.slices=4"};
    if (name == "gat.jumping") overrides.emplace_back("model.blocks=7");
    if (name == "gat.score") overrides.emplace_back("gat.edge_features=false");
    if (name == "gat.output_heads") overrides.emplace_back("gat.decoder=attention");
    if (name == "data.value_targets") overrides.emplace_back("data.targets=pressure,velocity");
    if (name == "data.world_radius") overrides.emplace_back("data.world_position=x");
    if (name == "optimizer.momentum") overrides.emplace_back("optimizer.name=sgd");
    if (name == "recompute.offload") overrides.emplace_back("recompute.mode=block");
    if (name == "schedule.final_lr") overrides.emplace_back("schedule.name=constant");
    const Config changed = parse_config("", "run.toml", overrides);
    for (const ConfigKey& other : config_keys()) {
      const std::string other_name = full_name(other);
      const std::string unset = toml_literal(other, Config{});
      const bool expected = std::ranges::any_of(overrides, [&](const std::string& one) {
        return one.starts_with(other_name + "=") && one != other_name + "=" + unset;
      });
      CAPTURE(other_name);
      CHECK((toml_literal(other, changed) != unset) == expected);
    }
    CHECK(to_toml(parse_config(to_toml(changed), "again.toml")) == to_toml(changed));
  }
}

TEST_CASE("the table is in order") {
  std::set<std::string> names;
  std::set<std::string_view> sections;
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    const std::string name = full_name(key);
    CAPTURE(name);
    CHECK(names.insert(name).second);
    CHECK(find_key(name) == &key);
    CHECK_FALSE(key.help.empty());
    CHECK_FALSE(key.help.ends_with('.'));
    CHECK(key.help.find(". ") == key.help.npos);  // one sentence, of at most 25 words
    CHECK(std::count(key.help.begin(), key.help.end(), ' ') < 25);
    if (key.section != section) {
      CHECK(sections.insert(key.section).second);  // the keys of a section lie together
    }
    section = key.section;
  }
  CHECK(sections.size() == config_sections().size());
  for (const ConfigSection& known : config_sections()) CHECK(sections.count(known.name) == 1);
}

TEST_CASE("train.batch is a number or auto") {
  for (const char* text : {"[train]\nbatch = \"auto\"", ""}) {
    const std::vector<std::string> overrides =
        *text == '\0' ? std::vector<std::string>{"train.batch=auto"} : std::vector<std::string>{};
    const Config config = parse_config(text, "run.toml", overrides);
    CHECK(config.train.batch == kAutoBatch);
    check_has(to_toml(config), "\nbatch = \"auto\"\n");
    CHECK(to_toml(parse_config(to_toml(config), "again.toml")) == to_toml(config));
  }
  for (const char* text : {"0", "\"0\"", "\"\"", "\"automatic\"", "[\"auto\"]"}) {
    CHECK_THROWS_AS(parse_config(std::string("[train]\nbatch = ") + text, "run.toml"), ConfigError);
  }
  CHECK_THROWS_AS(parse_config("", "run.toml", {"train.accumulate=auto"}), ConfigError);
  CHECK_THROWS_AS(parse_config("", "run.toml", {"plan.min_batch=9", "plan.max_batch=8"}), ConfigError);
}

TEST_CASE("values have the type of their key") {
  CHECK(parse_config("[train]\nnoise = 1", "run.toml").train.noise == 1.0);
  CHECK(parse_config("[data]\nnoise_types = []\n[train]\nnoise = 0", "run.toml").data.noise_types.empty());
  const char* const wrong[] = {
      "[train]\nsteps = 10.0",
      "[train]\nsteps = \"10\"",
      "[train]\nsteps = true",
      "[train]\nsteps = 0",
      "[train]\nsteps = [1]",
      "[train]\nnoise = \"0.1\"",
      "[train]\nnoise = -0.1",
      "[train]\nnoise = nan",
      "[train]\nnoise = inf",
      "[train]\nnoise = 1e999",
      "[model]\nkeep_hidden = 1",
      "[model]\nactivation = 3",
      "[model]\nactivation = \"\"",
      "[data]\npath = 3",
      "[data]\npath = \"a\\u0007\"",
      "[data]\ninputs = []",
      "[data]\ninputs = \"velocity\"",
      "[data]\ninputs = [\"a\", \"a\"]",
      "[data]\ninputs = [\"\"]",
      "[data]\npredicted_types = []",
      "[data]\npredicted_types = [0, 0]",
      "[run]\ndevice = \"gpu\"",
      "[run]\ndevice = \"cuda:x\"",
      "[data]\npredicted_types = [1.0]",
      "[run]\ndir = \"\"",
      "[memory]\nlimit = 8",
      "[memory]\nlimit = \"8 gigs\"",
      "[run]\nseed = 99999999999999999999999",
      "[train]\nsteps = 1979-05-27",
      "[train.steps]\na = 1",
  };
  for (const char* text : wrong) {
    CAPTURE(text);
    check_has(fault_of(text), "run.toml:");
    check_has(fault_of(text), "needed ");
  }
  check_has(fault_of("[train]\nbatch = 2.0"),
            "run.toml:2: [train.batch] needed an integer from 1 to 1e6, or \"auto\", got 2.0");
}

TEST_CASE("all faults of a file are told at once, by line") {
  const std::string faults = fault_of(
      "precisoin = \"f32\"\n"
      "[train]\n"
      "steps = \"many\"\n"
      "nois = 0.1\n"
      "[optimiser]\n"
      "[model]\n"
      "activation = \"rellu\"\n"
      "[data]\n"
      "lr = 1\n",
      {"run.seed=-1"});
  check_has(faults, "run.toml: 7 faults");
  const char* const parts[] = {
      "run.toml:1: [precisoin]",   "did you mean precision?",        "run.toml:3: [train.steps]",
      "run.toml:4: [train.nois]",  "did you mean train.noise?",      "run.toml:5: [optimiser]",
      "did you mean [optimizer]?", "run.toml:7: [model.activation]", "did you mean \"relu\"?",
      "run.toml:9: [data.lr]",     "did you mean optimizer.lr?",     "--set \"run.seed=-1\""};
  size_t at = 0;
  for (const char* part : parts) {
    CAPTURE(part);
    CAPTURE(faults);
    const size_t found = faults.find(part, at);
    REQUIRE(found != std::string::npos);  // in this order
    at = found;
  }
}

TEST_CASE("text that is not TOML is told with its line") {
  check_has(fault_of("[train]\nsteps = 1\nbatch = oops\n"), "run.toml:3: [syntax] needed TOML");
  check_has(fault_of("[train]\nsteps = 1\nsteps = 2\n"), "run.toml:3: ");
  check_has(fault_of("a = [1,\n"), "run.toml:1: ");
  check_has(fault_of("train = 3\n"), "run.toml:1: [train] needed a section [train], got 3");
}

TEST_CASE("a syntax error shows the key's line and a caret") {
  struct Case {
    const char* text;
    const char* shown;
  };
  const Case cases[] = {{"[train]\nbatch = oops\n", "\n 2 | batch = oops\n   |         ^"},
                        {"[train]\nsteps = 1\nsteps =\t2\n", "\n 3 | steps =\t2\n   |        \t^"},
                        {"\n\n[train\nsteps = 1\n", "\n 3 | [train\n   | ^"},
                        {"a = 1\n  steps 1", "\n 2 |   steps 1\n   |   ^"},
                        {"a = 1\nb = [1,\n  2\n", "\n 2 | b = [1,\n   |     ^"},
                        {"b = [1,\n  oops, # ]\n]\nc = 1\n", "\n 1 | b = [1,\n   |     ^"},
                        {"a = \"\"\"x\ny\n", "\n 1 | a = \"\"\"x\n   |     ^"},
                        {"a = 'x\nb = 1\n", "\n 1 | a = 'x\n   |     ^"},
                        {"\"\u00e9 = #\" = oops\n", "\n 1 | \"\u00e9 = #\" = oops\n   |           ^"},
                        {"a =\r\n", "\n 1 | a =\n   |    ^"}};
  for (const Case& item : cases) {
    const std::string fault = fault_of(item.text);
    CAPTURE(fault);
    CHECK(fault.ends_with(item.shown));
  }
}

TEST_CASE("an override wins over the file and meets the same checks") {
  const std::string file = "[train]\nsteps = 10\nbatch = 3\n";
  const Config config =
      parse_config(file, "run.toml",
                   {"train.steps=20", "train.steps=30", "data.path=a = b.mgd", "run.device=cuda:1",
                    "data.inputs=velocity,pressure", "data.noise_types=0,5", "optimizer.lr=1",
                    "model.activation=\"silu\"", "memory.limit=1.5GiB", "precision=f64"});
  CHECK(config.train.steps == 30);
  CHECK(config.train.batch == 3);
  CHECK(config.data.path == "a = b.mgd");
  CHECK(config.run.device == "cuda:1");
  CHECK(config.data.inputs == std::vector<std::string>{"velocity", "pressure"});
  CHECK(config.data.noise_types == std::vector<int64_t>{0, 5});
  CHECK(config.optimizer.lr == 1.0);
  CHECK(config.model.activation == Activation::silu);
  CHECK(config.memory.memory_limit == (int64_t{3} << 29));
  CHECK(config.precision == DType::f64);
  check_has(fault_of("", {"train.steps=x"}), "--set \"train.steps=x\": [train.steps] needed an integer");
  check_has(fault_of("", {"train.steps="}), "got nothing");
  check_has(fault_of("", {"train.steps=1\n[model]"}), "[train.steps] needed an integer");
  check_has(fault_of("", {"train.stesp=1"}), "did you mean train.steps?");
  check_has(fault_of("", {"train.steps"}), "needed section.key=value");
  check_has(fault_of("", {"=1"}), "needed section.key=value");
}

TEST_CASE("keys that contradict one another") {
  check_has(fault_of("[train]\nsteps = 10\n[schedule]\nwarmup_steps = 11\n"),
            "run.toml:4: [schedule.warmup_steps] needed at most train.steps = 10, got 11");
  check_has(fault_of("[optimizer]\nlr = 1e-7\n"), "run.toml:2: [schedule.final_lr] needed at most");
  check_has(fault_of("[train]\npatience = 3\nvalidate_every = 0\n"),
            "run.toml:2: [train.patience] needed 0 with train.validate_every = 0, got 3");
  check_has(fault_of("[train]\nnoise = {pressure = 1.0}\n"),
            "run.toml:2: [train.noise] needed fields among data.inputs = [velocity], got \"pressure\"");
  check_has(fault_of("[train]\nbest = \"rollout\"\nvalidate_rollouts = 0\n"),
            "run.toml:2: [train.best] needed \"auto\" or \"loss\" with train.validate_rollouts = 0");
  check_has(fault_of("[task]\nname = \"steady_field\"\n[train]\nvalidate_rollouts = 3\n"),
            "run.toml:4: [train.validate_rollouts] needed 0 with task.name = \"steady_field\"");
  check_has(fault_of("[task]\nname = \"steady_field\"\n[train]\nbest = \"rollout\"\n"),
            "run.toml:4: [train.best] needed \"auto\" or \"loss\" with task.name = \"steady_field\"");
  check_has(fault_of("[schedule]\nname = \"step\"\nrestart_every = 5\n"),
            "run.toml:3: [schedule.restart_every] needed 0 unless schedule.name is");
  check_has(fault_of("", {"data.node_types=3"}), "--set \"data.node_types=3\": [data.predicted_types]");
  check_has(fault_of("[data]\nnoise_types = []"), "[train.noise] needed 0");
  check_has(fault_of("[normalize]\nmode = \"online\"\nwarmup_steps = 100000"), "[normalize.warmup_steps]");
  check_has(fault_of("[optimizer]\nmomentum = 0.9"), "[optimizer.momentum] needed 0 unless");
  check_has(fault_of("[loss_scale]\ninitial = 4\nfloor = 8"),
            "run.toml:2: [loss_scale.initial] needed a number from loss_scale.floor = 8.0");
  check_has(fault_of("[loss_scale]\ncap = 1024"), "[loss_scale.initial] needed a number");
  check_has(fault_of("graphs = \"capture\"\n[train]\nfree_gradients = true"),
            "run.toml:3: [train.free_gradients] needed false with graphs = \"capture\", whose recorded");
  CHECK(fault_of("[train]\nsteps = 10\n[schedule]\nwarmup_steps = 10\n").empty());
  CHECK(fault_of("[optimizer]\nlr = 1e-7\n[schedule]\nname = \"constant\"\n").empty());
  // a key that is wrong in itself is not blamed twice
  CHECK(fault_of("[train]\nsteps = 0\n[schedule]\nwarmup_steps = 200000\n").find("schedule") ==
        std::string::npos);
}

TEST_CASE("sizes") {
  CHECK(parse_size("") == 0);
  CHECK(parse_size("0") == 0);
  CHECK(parse_size("8GiB") == (int64_t{8} << 30));
  CHECK(parse_size("1.5 kB") == 1500);
  CHECK(parse_size("12B") == 12);
  for (const char* text :
       {"8", "GiB", "-1B", "1e3B", "8GiB ", "nanB", "infB", "9999999TiB", "1,5GB", "8gib"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_size(text).has_value());
  }
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1024}, int64_t{123456789},
                              int64_t{1} << 40, (int64_t{1} << 53) - 1}) {
    CHECK(parse_size(format_size(bytes)) == bytes);
  }
}

TEST_CASE("a number for all fields, or one for each that a table names") {
  const std::string fields = "[data]\ninputs = [\"velocity\", \"p 2\"]\ntargets = [\"velocity\", \"p 2\"]\n";
  for (const std::string text : {"[train]\nnoise = {\"p 2\" = 3, velocity = 0.5}\n",
                                 "[train.noise]\nvelocity = 0.5\n\"p 2\" = 3.0\n"}) {
    const Config config = parse_config(fields + text, "run.toml");
    CHECK(config.train.noise == 0.0);
    CHECK(config.train.field_noise == std::vector<FieldNumber>{{"p 2", 3.0}, {"velocity", 0.5}});
    CHECK(to_toml(parse_config(to_toml(config), "again.toml")) == to_toml(config));
    const Config plain = parse_config(to_toml(config), "again.toml", {"train.noise=0.25"});
    CHECK(plain.train.noise == 0.25);
    CHECK(plain.train.field_noise.empty());
  }
  check_has(fault_of("[train]\nnoise = {}\n"),
            "[train.noise] needed a number from 0 to 1e12, or a table of "
            "fields with one each, got an empty table");
  check_has(fault_of("[train]\nnoise = {velocity = -1}\n"), "got -1 of \"velocity\"");
  check_has(fault_of("[train]\nnoise = {velocity = \"a\"}\n"), "got \"a\" of \"velocity\"");
  check_has(fault_of("[train]\nnoise = \"a\"\n"), "got \"a\"");
}

TEST_CASE("text survives quoting") {
  Config config;
  config.data.path = "a \"quoted\" \\ path/\u00e9 # [x]";
  CHECK(parse_config(to_toml(config), "run.toml").data.path == config.data.path);
}

TEST_CASE("files that cannot be read") {
  const test::ScratchDirectory scratch;
  CHECK_THROWS_AS(load_config((scratch.path / "none.toml").string()), ConfigError);
  CHECK_THROWS_AS(load_config(scratch.path.string()), ConfigError);
  CHECK_THROWS_AS(load_config("/dev/zero"), ConfigError);
  CHECK(to_toml(load_config("/dev/null")) == to_toml(Config{}));
  CHECK_THROWS_AS(require_data_path(Config{}), ConfigError);
}

TEST_CASE("hostile text is refused in good time") {
  const std::string hostile[] = {
      "a = " + std::string(20000, '['),
      "a = " + std::string(30000, '{'),
      "a" + std::string(20000, '.') + "b = 1",
      "a = [" + std::string(40000, ',') + "]",
      "[run]\nseed = 0b1" + std::string(64, '0'),
      std::string(100000, '\n'),
      std::string("a = \"\0\"", 7),
      "a = \"\\ud800\"",
      "\xff\xfe = 1",
      "a = 'd\xb5\xb5'",
      "a = \"\xc0\x80\"",
      "# \xe0\x80\x80",
      "# \xed\xa0\x80",
      "# \xf4\x90\x80\x80",
      "# \xe2\x82",
      "# \x7f\n",
      "# \x1b[2J\n# more",
      "# \r#\n",
  };
  for (const std::string& text : hostile) {
    CAPTURE(text.substr(0, 40));
    CHECK_THROWS_AS(parse_config(text, "run.toml"), ConfigError);
  }
  CHECK(fault_of("# \t\r\n[train]\r\nsteps = 3\r\n").empty());
  CHECK(fault_of("# \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf \xed\x9f\xbf").empty());
  const std::string many = [] {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "k" + std::to_string(i) + " = 1\n";
    return text;
  }();
  check_has(fault_of(many), "run.toml: 1000 faults");
  check_has(fault_of(many), "and 950 more");
}

TEST_CASE("mutated files give a configuration or a ConfigError") {
  const std::string seed = to_toml(Config{});
  const std::string_view pieces[] = {"[",  "]", "{",  "}",  "\"", "'''", "=", ".",
                                     "\n", "#", "\\", "0x", "-",  "1e9", ",", "[["};
  std::mt19937 random(7);
  const auto below = [&](size_t limit) { return random() % limit; };
  int accepted = 0;
  for (int round = 0; round < 400; ++round) {
    std::string text = seed;
    for (size_t change = 0; change <= below(3); ++change) {
      const size_t at = below(text.size());
      switch (below(3)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, below(20));
          break;
        default:
          text.insert(at, pieces[below(std::size(pieces))]);
          break;
      }
    }
    try {
      const Config config = parse_config(text, "run.toml");
      CHECK(to_toml(parse_config(to_toml(config), "again.toml")) == to_toml(config));
      ++accepted;
    } catch (const ConfigError& error) {
      CHECK(std::string(error.what()).rfind("run.toml", 0) == 0);
    }
  }
  CHECK(accepted > 0);
}

TEST_CASE("a resumed run may change only keys without effect") {
  size_t fixed = 0;
  for (const ConfigKey& key : config_keys()) {
    Config saved;
    saved.normalize.mode = NormalizeMode::online;  // warmup_steps has no effect otherwise
    const std::string full = full_name(key);
    CAPTURE(full);
    const std::string setting = full + "=" + std::visit(OtherValue{saved}, key.type);
    if (!fault_of(to_toml(saved), {setting}).empty()) continue;  // contradicts another key
    const Config changed = parse_config(to_toml(saved), "run.toml", {setting});
    CHECK(changed_fixed_key(saved, changed) == (key.use.fixed ? full : ""));
    fixed += key.use.fixed ? 1 : 0;
  }
  CHECK(fixed > 18);
  for (const char* name : {"model.width", "precision", "train.noise", "data.inputs", "run.seed"})
    CHECK_MESSAGE(find_key(name)->use.fixed, name);
  Config other;
  other.normalize.warmup_steps += 1;
  CHECK(changed_fixed_key(Config{}, other).empty());
}

TEST_CASE("numbers are read alike under every locale") {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string text =
      "[train]\nnoise = 0.01\nsteps = 123456\n[optimizer]\nlr = 5e-4\neps = 1_0.2_5e-9\n";
  const Config plain = parse_config(text, "run.toml", {"train.clip_norm=+1.5"});
  CHECK(plain.train.noise == 0.01);
  CHECK(plain.optimizer.eps == 10.25e-9);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  const std::string c_before = std::setlocale(LC_ALL, nullptr);
  std::setlocale(LC_ALL, "de_DE.UTF-8");  // where it is installed
  const Config other = parse_config(text, "run.toml", {"train.clip_norm=+1.5"});
  const std::string written = to_toml(other), exact = exact_text(1.5);
  const std::string fault = fault_of("train.noise = -0.25");
  std::locale::global(before);
  std::setlocale(LC_ALL, c_before.c_str());
  CHECK(written == to_toml(plain));
  CHECK(exact == "0x1.8p+0");
  check_has(fault, "got -0.25");
  CHECK(parse_number("0x1.8p+3") == 12.0);
  CHECK(parse_number("-inf") == -HUGE_VAL);
  for (const double value : {0.0, -0.0, 1.0 / 3, -6.25e-310, 1.7e308, HUGE_VAL})
    CHECK(std::bit_cast<uint64_t>(parse_number(exact_text(value)).value_or(7)) ==
          std::bit_cast<uint64_t>(value));
  CHECK(exact_text(-12.0) == "-0x1.8p+3");
  for (const char* none : {"", "-", "--1", "+-1", "0x", "1,5", "1 ", " 1", "1e999", "0x-1"}) {
    CAPTURE(none);
    CHECK_FALSE(parse_number(none).has_value());
  }
}

}  // namespace
}  // namespace meshgrad
