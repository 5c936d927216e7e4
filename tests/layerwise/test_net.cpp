#include "layerwise/net.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

const char* const joint = R"({
  "name": "joint", // comments are allowed
  "encoder": {"kind": "thermometer", "levels": 9},
  "head": {"kind": "linear", "grid": 2},
  "layers": [
    {"name": "a", "width": 70},
    {"name": "b", "inputs": ["a"], "pool": "or", "width": 128, "weights": "ternary"},
    {"name": "c", "inputs": ["a", "b"], "width": 64, "kernel": 5, "stride": 2, "padding": 1, "pool": "space_to_depth"}
  ],
  "stages": [
    {"name": "first", "train": ["a", "b"], "heads": ["a", "b"], "epochs": 3, "passes_gradient": false},
    {"name": "second", "train": ["c"], "head": {"grid": 1}}
  ],
  "classifier": ["b", "c"],
  "mirror": false,
  "shift": 2,
  "sure": 0.75
})";

// The complaint about a net of these layers and, if given, stages.
std::string complaint(const std::string& layers, const std::string& rest = "") {
  return message_of(ErrorKind::usage,
                    [&] { parse_net(R"({"name": "n", "layers": [)" + layers + "]" + rest + "}", "net.json"); });
}

std::string complaint_about(const std::string& net) {
  return message_of(ErrorKind::usage, [&] { parse_net(net, "net.json"); });
}

const std::string a = R"({"name": "a", "width": 64})";
const std::string b = R"({"name": "b", "width": 64})";

std::vector<LayerGeometry> geometry(const std::string& layers, std::size_t height, std::size_t width, std::size_t channels) {
  return derive_geometry(parse_net(R"({"layers": [)" + layers + "]}", "net.json"), height, width, channels);
}

}  // namespace

TEST_CASE("a net file says everything about the net", "[net]") {
  const NetSpec net = parse_net(joint, "joint.json");
  CHECK(net.name == "joint");
  CHECK(net.encoder.kind == "thermometer");
  CHECK(net.encoder.levels == 9);
  REQUIRE(net.layers.size() == 3);
  CHECK(net.layers[0].inputs == std::vector<std::string>{"input"});
  CHECK(net.layers[0].kernel == 3);
  CHECK(net.layers[0].padding == 1);
  CHECK_FALSE(net.layers[0].ternary);
  CHECK(net.layers[1].pool == Downsample::any);
  CHECK(net.layers[1].pool_factor == 2);
  CHECK(net.layers[1].ternary);
  CHECK(net.layers[2].inputs == std::vector<std::string>{"a", "b"});
  CHECK(net.layers[2].stride == 2);
  CHECK(net.layers[2].padding == 1);
  REQUIRE(net.stages.size() == 2);
  CHECK(net.stages[0].heads == std::vector<std::string>{"a", "b"});
  CHECK_FALSE(net.stages[0].passes_gradient);
  CHECK(net.stages[0].head.kind == "linear");
  CHECK(net.stages[0].head.grid == 2);
  CHECK(net.stages[1].heads == std::vector<std::string>{"c"});
  CHECK(net.stages[1].head.kind == "linear");
  CHECK(net.stages[1].head.grid == 1);
  CHECK(net.stages[1].epochs == 4);
  CHECK(net.classifier == std::vector<std::string>{"b", "c"});
  CHECK_FALSE(net.views.mirror);
  CHECK(net.views.shift == 2);
  CHECK(net.views.sure == 0.75);
  CHECK(net.find("b") == &net.layers[1]);
  CHECK(net.find("d") == nullptr);
  CHECK(has(message_of(ErrorKind::usage, [&] { net.layer("d"); }), "net 'joint' has no layer 'd'"));
}

TEST_CASE("without stages every layer is one, and the last one votes", "[net]") {
  const NetSpec net = parse_net(R"({"layers": [)" + a + ", " + b + "]}", "net.json");
  REQUIRE(net.stages.size() == 2);
  CHECK(net.stages[0].train == std::vector<std::string>{"a"});
  CHECK(net.stages[1].heads == std::vector<std::string>{"b"});
  CHECK(net.layers[1].inputs == std::vector<std::string>{"a"});
  CHECK(net.classifier == std::vector<std::string>{"b"});
}

TEST_CASE("a net survives its JSON", "[net]") {
  for (const std::string& text : {std::string(joint), R"({"layers": [)" + a + "]}"}) {
    const NetSpec net = parse_net(text, "net.json");
    const nlohmann::json json = to_json(net);
    CHECK(to_json(net_from_json(json, "again")) == json);
    CHECK(to_json(parse_net(json.dump(), "again")) == json);
  }
}

TEST_CASE("a net file's mistakes are named", "[net]") {
  CHECK(has(complaint_about("{"), "net.json: not a net description"));
  CHECK(has(complaint_about("[]"), "net.json: expected an object {...}, found []"));
  CHECK(has(complaint_about("{}"), "layers: expected a list of at least one layer"));
  CHECK(has(complaint(""), "layers: expected a list of at least one layer"));
  CHECK(has(complaint(a, R"(, "stagse": [])"), "net.json: unknown key 'stagse'; did you mean 'stages'?"));
  CHECK(has(complaint(a, R"(, "mirror": 3)"), "net.json.mirror: 3 has the wrong type; expected true or false"));
  CHECK(has(complaint(a, R"(, "classifier": ["b"])"), "net.json: classifier: unknown name 'b'"));

  CHECK(has(complaint(R"({"name": "a", "widht": 64})"), "layers[0]: unknown key 'widht'; did you mean 'width'?"));
  CHECK(has(complaint(R"({"name": "a"})"), "layers[0].width: 0 is out of range; expected 1 to 65536"));
  CHECK(has(complaint(R"({"name": "a", "width": -1})"), "layers[0].width: -1 has the wrong type; expected a whole number"));
  CHECK(has(complaint(R"({"name": "a", "width": "x"})"), "expected a whole number, 0 or more"));
  CHECK(has(complaint(R"({"name": 1, "width": 64})"), "layers[0].name: 1 has the wrong type; expected a string"));
  CHECK(has(complaint(R"({"width": 64})"), "layers[0].name: '' cannot be a layer's name"));
  CHECK(has(complaint(R"({"name": "input", "width": 64})"), "'input' cannot be a layer's name"));
  CHECK(has(complaint(R"({"name": "a.b", "width": 64})"), "'a.b' cannot be a layer's name"));
  CHECK(has(complaint(a + ", " + a), "layers[1].name: there are two layers 'a'"));
  CHECK(has(complaint(a + R"(, {"name": "b", "inputs": ["A1"], "width": 64})"), "layers[1].inputs: unknown name 'A1'"));
  CHECK(has(complaint(R"({"name": "a", "inputs": ["a"], "width": 64})"), "layers[0].inputs: unknown name 'a'"));
  CHECK(has(complaint(R"({"name": "a", "inputs": "input", "width": 64})"), "expected a list of strings"));
  CHECK(has(complaint(R"({"name": "a", "pool": "max", "width": 64})"), "pool: 'max' is not a way to down-sample"));
  CHECK(has(complaint(R"({"name": "a", "kernel": 16, "width": 64})"), "layers[0].kernel: 16 is out of range"));
  CHECK(has(complaint(R"({"name": "a", "stride": 0, "width": 64})"), "layers[0].stride: 0 is out of range"));
  CHECK(has(complaint(R"({"name": "a", "padding": 3, "width": 64})"), "layers[0].padding: 3 is out of range; expected 0 to 2"));
  CHECK(has(complaint(R"({"name": "a", "weights": "tern", "width": 64})"), "layers[0].weights: unknown name 'tern'"));

  CHECK(has(complaint(a, R"(, "encoder": {"kind": "whitend"})"),
            "encoder.kind: unknown name 'whitend'; did you mean 'whitened'?"));
  CHECK(has(complaint(a, R"(, "encoder": {"patch": 4})"), "encoder.patch: 4 is even; expected an odd size"));
  CHECK(has(complaint(a, R"(, "encoder": {"patch": 17})"), "encoder.patch: 17 is out of range; expected 1 to 15"));
  CHECK(has(complaint(a, R"(, "encoder": {"filters": 0})"), "encoder.filters: 0 is out of range"));
  CHECK(has(complaint(a, R"(, "encoder": {"levels": 256})"), "encoder.levels: 256 is out of range"));
  CHECK(has(complaint(a, R"(, "encoder": {"epsilon": 0})"), "encoder.epsilon: 0 is not above 0"));
  CHECK(has(complaint(a, R"(, "encoder": {"epsilon": "x"})"), "encoder.epsilon: \"x\" has the wrong type; expected a number"));
  CHECK(has(complaint(a, R"(, "encoder": {"contrast": -1})"), "encoder.contrast: -1 is out of range; expected 0 to 255"));
  CHECK(has(complaint(a, R"(, "encoder": 3)"), "encoder: expected an object {...}, found 3"));
  CHECK(has(complaint(a, R"(, "head": {"kind": "deep"})"), "head.kind: unknown name 'deep'"));
  CHECK(has(complaint(a, R"(, "head": {"grid": 0})"), "head.grid: 0 is out of range"));
  CHECK(has(complaint(a, R"(, "head": {"hidden": 5000})"), "head.hidden: 5000 is out of range"));
  CHECK(has(complaint(a, R"(, "head": {"kernel": 16})"), "head.kernel: 16 is out of range"));
}

TEST_CASE("a stage's mistakes are named", "[net]") {
  const std::string both = a + ", " + b;
  CHECK(has(complaint(a, R"(, "stages": 3)"), "stages: expected a list"));
  CHECK(has(complaint(a, R"(, "stages": [])"), "stages: expected at least one"));
  CHECK(has(complaint(a, R"(, "stages": [{}])"), "stages[0].train: expected at least one layer"));
  CHECK(has(complaint(a, R"(, "stages": [{"train": ["b"]}])"), "stages[0].train: unknown name 'b'"));
  CHECK(has(complaint(both, R"(, "stages": [{"train": ["a"], "heads": ["b"]}])"), "stages[0].heads: unknown name 'b'"));
  CHECK(has(complaint(both, R"(, "stages": [{"train": ["a", "b"], "heads": ["b", "b"]}])"),
            "stages[0].heads: 'b' twice; expected each layer once"));
  CHECK(has(complaint(both, R"(, "stages": [{"train": ["a"], "epoch": 3}])"), "unknown key 'epoch'; did you mean 'epochs'?"));
  CHECK(
      has(complaint(both, R"(, "stages": [{"train": ["a"], "epochs": 100001}])"), "stages[0].epochs: 100001 is out of range"));
  CHECK(has(complaint(both, R"(, "stages": [{"train": ["a"], "head": {"gird": 1}}])"), "stages[0].head: unknown key 'gird'"));
  CHECK(has(complaint(both, R"(, "stages": [{"train": ["a"], "options": {"smalest_offset": 1}}])"),
            "stages[0].options: unknown name 'smalest_offset'; did you mean 'smallest_offset'?"));
  CHECK(has(complaint(both, R"(, "stages": [{"train": ["a"], "options": {"head_learning_rate": 0}}])"),
            "stages[0].options.head_learning_rate: 0 is out of range; expected above 0 to 10"));
  CHECK(has(complaint(both, R"(, "stages": [{"train": ["a"], "options": {"final_rate": "low"}}])"), "an object of numbers"));
  const std::string later = complaint(both, R"(, "stages": [{"name": "s", "train": ["b"]}, {"train": ["a"]}])");
  CHECK(has(later, "stage 's' trains 'b', but its input 'a' is trained in no earlier stage"));
  CHECK(has(complaint(both, R"(, "stages": [{"train": ["b"]}, {"train": ["a"]}])"), "trains 'b', but its input 'a'"));
}

TEST_CASE("a layer says whether it passes its gradient, where it is not as its stage says", "[net]") {
  const NetSpec net = parse_net(joint, "joint.json");
  CHECK_FALSE(net.layers[1].passes_gradient.has_value());
  CHECK_FALSE(net.stages[0].lets_pass(net.layers[1]));
  CHECK(net.stages[1].lets_pass(net.layers[2]));
  const NetSpec coupled = with_setting(net, "b.passes_gradient", "true");
  CHECK(coupled.stages[0].lets_pass(coupled.layers[1]));
  CHECK_FALSE(coupled.stages[0].lets_pass(coupled.layers[0]));
  const NetSpec cut = with_setting(with_setting(net, "first.passes_gradient", "true"), "b.passes_gradient", "false");
  CHECK_FALSE(cut.stages[0].lets_pass(cut.layers[1]));
  CHECK(net_from_json(to_json(cut), "again").layers[1].passes_gradient == false);
  // Names of trained stages and runs depend on the JSON: nets that say nothing keep theirs.
  CHECK_FALSE(to_json(net)["layers"][1].contains("passes_gradient"));
  CHECK(shared_stages(net, coupled) == 0);

  CHECK(has(message_of(ErrorKind::usage, [&] { with_setting(net, "b.passes_gradient", "no"); }),
            "passes_gradient: \"no\" has the wrong type; expected true or false"));
  // The layer above was meant.
  CHECK(
      message_of(ErrorKind::usage, [&] { with_setting(net, "a.passes_gradient", "false"); }) ==
      "a.passes_gradient=false: layer 'a': passes_gradient: false, but no stage trains it together with a layer that it reads; "
      "expected it of a layer that reads one which learns with it");
  CHECK(has(message_of(ErrorKind::usage, [&] { with_setting(net, "c.passes_gradient", "false"); }), "layer 'c'"));

  // A stage that trains a layer alone may have its name, and passes nothing.
  const std::string greedy = R"(, "stages": [{"train": ["a"]}, {"train": ["b"]}, {"name": "%", "train": ["a", "b"]}])";
  const auto named = [&](const std::string& name) {
    return parse_net(R"({"layers": [)" + a + ", " + b + "]" + std::string(greedy).replace(greedy.find('%'), 1, name) + "}",
                     "greedy.json");
  };
  CHECK(with_setting(named("together"), "b.passes_gradient", "false").layers[1].passes_gradient == false);
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         with_setting(parse_net(R"({"layers": [)" + a + ", " + b + R"(], "stages": [{"train": ["a", "b"]}]})",
                                                "unnamed.json"),
                                      "a.passes_gradient", "false");
                       }),
            "'a.passes_gradient': a stage of several layers and a layer have this name"));
}

TEST_CASE("a layer whose stage gives it no head cannot vote", "[net]") {
  const std::string message = complaint(a + ", " + b, R"(, "stages": [{"train": ["a", "b"]}], "classifier": ["a"])");
  CHECK(has(message, "classifier: layer 'a' keeps no head; expected some of "));
}

TEST_CASE("settings change one value of a net", "[net]") {
  const NetSpec net = parse_net(joint, "joint.json");
  CHECK(with_setting(net, "a.width", "32").layers[0].width == 32);
  CHECK(with_setting(net, "b.pool", "majority").layers[1].pool == Downsample::majority);
  CHECK_FALSE(with_setting(net, "b.weights", "binary").layers[1].ternary);
  CHECK(with_setting(net, "c.inputs", R"(["b"])").layers[2].inputs == std::vector<std::string>{"b"});
  CHECK(with_setting(net, "net.shift", "2").views.shift == 2);
  CHECK(with_setting(net, "net.sure", "0.5").views.sure == 0.5);
  CHECK_FALSE(with_setting(net, "net.mirror", "false").views.mirror);
  CHECK(net.head_bits == 4);
  CHECK(net_from_json(to_json(with_setting(net, "net.head_bits", "16")), "again").head_bits == 16);
  CHECK(with_setting(net, "first.epochs", "7").stages[0].epochs == 7);
  CHECK(with_setting(net, "first.epochs", "7").stages[1].epochs == 4);
  CHECK(with_setting(net, "first.passes_gradient", "true").stages[0].passes_gradient);
  CHECK(with_setting(net, "encoder.levels", "30").encoder.levels == 30);
  const NetSpec tuned = with_setting(with_setting(net, "first.smallest_offset", "-3"), "first.final_rate", "0.5");
  CHECK(tuned.stages[0].options == std::map<std::string, double>{{"final_rate", 0.5}, {"smallest_offset", -3}});
  CHECK(tuned.stages[1].options.empty());
  CHECK(net_from_json(to_json(tuned), "again").stages[0].options == tuned.stages[0].options);
  const NetSpec headed = with_setting(net, "head.kind", "class_conv");
  CHECK(headed.stages[0].head.kind == "class_conv");
  CHECK(headed.stages[1].head.kind == "class_conv");
  // A new kernel brings its own padding.
  CHECK(with_setting(net, "a.kernel", "7").layers[0].padding == 3);
  CHECK(with_setting(net, "c.kernel", "7").layers[2].padding == 3);
  CHECK(with_setting(net, "a.width", "32").layers[2].padding == 1);
  // Layer and stage of one name: epochs belong to the stage, the rest to the layer.
  const NetSpec plain = parse_net(R"({"layers": [)" + a + "]}", "net.json");
  CHECK(with_setting(plain, "a.epochs", "9").stages[0].epochs == 9);
  CHECK(with_setting(plain, "a.width", "9").layers[0].width == 9);
}

TEST_CASE("settings that make no sense are named", "[net]") {
  const NetSpec net = parse_net(joint, "joint.json");
  const auto message = [&](const std::string& key, const std::string& value) {
    return message_of(ErrorKind::usage, [&] { with_setting(net, key, value); });
  };
  CHECK(has(message("width", "3"), "'width': expected LAYER.KEY, STAGE.KEY, encoder.KEY, head.KEY or net.KEY"));
  CHECK(has(message("net.name", "x"), "'net.name': expected net.mirror, net.shift, net.sure or net.head_bits"));
  for (const char* sure : {"0", "-0.5", "1.5"}) {
    CHECK(has(message("net.sure", sure), "sure: " + std::string(sure) + " is out of range; expected a probability above 0"));
  }
  CHECK(has(message("net.head_bits", "1"), "head_bits: 1 is out of range; expected 2 to 16"));
  CHECK(has(message("encodr.levels", "3"), "'encodr.levels': unknown name 'encodr'; did you mean 'encoder'?"));
  CHECK(has(message("a.widht", "3"), "unknown key 'widht'; did you mean 'width'?"));
  CHECK(message("net.shift", "-1") == "net.shift: -1 has the wrong type; expected a whole number, 0 or more");
  CHECK(has(message("a.width", "many"), "\"many\" has the wrong type; expected a whole number"));
  CHECK(has(message("a.width", "many"), "a.width=many"));
  CHECK(has(message("a.width", "0"), "0 is out of range"));
  CHECK(has(message("b.pool", "mean"), "pool: 'mean'"));
}

TEST_CASE("geometry follows pooling, strides and padding", "[net]") {
  const auto plain = geometry(R"({"name": "a", "width": 70}, {"name": "b", "pool": "or", "width": 10, "kernel": 2},
                                 {"name": "c", "width": 64, "stride": 2, "kernel": 5, "padding": 0})",
                              16, 24, 64);
  CHECK(plain[0].input == MapShape{16, 24, 64, 1});
  CHECK(plain[0].output == MapShape{16, 24, 70, 0});
  CHECK(plain[0].patch_words == 9);
  CHECK(plain[0].valid_bits == 9 * 64);
  CHECK(plain[1].input == MapShape{8, 12, 128, 0});
  CHECK(plain[1].output == MapShape{7, 11, 10, 0});
  CHECK(plain[1].patch_words == 4 * 2);
  CHECK(plain[1].valid_bits == 4 * 70);
  CHECK(plain[1].sources[0].layer == 0);
  CHECK(plain[1].sources[0].factor == 2);
  CHECK(plain[2].output == MapShape{2, 4, 64, 0});
  const auto depth = geometry(R"({"name": "a", "pool": "space_to_depth", "width": 64})", 8, 8, 70);
  CHECK(depth[0].input == MapShape{4, 4, 4 * 128, 1});
  CHECK(depth[0].valid_bits == 9 * 4 * 70);
}

TEST_CASE("inputs of several resolutions meet at the smallest", "[net]") {
  const auto skip = geometry(R"({"name": "a", "width": 70}, {"name": "b", "pool": "or", "width": 128},
                                {"name": "c", "inputs": ["input", "a", "b"], "width": 64},
                                {"name": "d", "inputs": ["b", "a"], "pool": "and", "width": 64})",
                             16, 8, 64);
  const LayerGeometry& c = skip[2];
  CHECK(c.input == MapShape{8, 4, 64 + 128 + 128, 1});
  REQUIRE(c.sources.size() == 3);
  CHECK(c.sources[0].layer == -1);
  CHECK(c.sources[0].factor == 2);
  CHECK(c.sources[0].word == 0);
  CHECK(c.sources[1].factor == 2);
  CHECK(c.sources[1].word == 1);
  CHECK(c.sources[2].factor == 1);
  CHECK(c.sources[2].word == 3);
  CHECK(c.valid_bits == 9 * (64 + 70 + 128));
  const LayerGeometry& d = skip[3];
  CHECK(d.input == MapShape{4, 2, 256, 1});
  CHECK(d.sources[0].factor == 2);
  CHECK(d.sources[1].factor == 4);
}

TEST_CASE("sizes that do not fit are named", "[net]") {
  const auto message = [](const std::string& layers, std::size_t height, std::size_t width) {
    return message_of(ErrorKind::usage, [&] { geometry(layers, height, width, 64); });
  };
  CHECK(has(message(R"({"name": "a", "width": 64, "pool": "or"})", 7, 8), "layer 'a': an input of 7x8 pixels"));
  CHECK(has(message(R"({"name": "a", "width": 64, "pool": "or"})", 8, 7), "layer 'a': an input of 8x7 pixels"));
  CHECK(has(message(R"({"name": "a", "width": 64, "pool": "or"})", 1, 1), "cannot be reduced to 0 rows"));
  CHECK(has(message(R"({"name": "a", "width": 64, "kernel": 9, "padding": 0})", 8, 8),
            "layer 'a': kernel 9 is larger than its input of 8x8 pixels"));
  CHECK(has(
      message(R"({"name": "a", "width": 64, "kernel": 3, "padding": 0}, {"name": "b", "inputs": ["input", "a"], "width": 64})",
              8, 8),
      "layer 'b': an input of 8x8 pixels cannot be reduced to 6 rows"));
}

TEST_CASE("a layer may learn again, with all that reads it", "[net]") {
  const auto net = [](const std::string& stages, const std::string& classifier = "") {
    return parse_net(R"({"layers": [{"name": "a", "width": 8}, {"name": "b", "inputs": ["a"], "width": 8}],
        "stages": [{"train": ["a"]}, {"train": ["b"]}, )" +
                         stages + "]" + classifier + "}",
                     "net.json");
  };
  const auto message = [&](const std::string& stages, const std::string& classifier = "") {
    return message_of(ErrorKind::usage, [&] { net(stages, classifier); });
  };
  const NetSpec both = net(R"({"name": "both", "train": ["a", "b"], "augment": "flip,cutout4"})", R"(, "classifier": ["b"])");
  CHECK(both.stages[2].augment == "flip,cutout4");
  CHECK(to_json(net_from_json(to_json(both), "again")) == to_json(both));
  CHECK(with_setting(both, "both.augment", "crop2").stages[2].augment == "crop2");
  CHECK(net(R"({"name": "upper", "train": ["b"]})").stages.size() == 3);
  CHECK(has(message(R"({"name": "lower", "train": ["a"]})"),
            "stage 'lower' trains 'a' again, but not 'b', which was trained on what it gave before"));
  CHECK(has(message(R"({"name": "both", "train": ["a", "b"]})", R"(, "classifier": ["a"])"),
            "classifier: layer 'a' keeps no head; "));
  CHECK(has(message(R"({"name": "both", "train": ["a", "b"], "head": {"grid": 2}})"),
            "stage 'both' describes another head of layer 'b' than an earlier stage"));
  CHECK(has(message(R"({"name": "both", "train": ["a", "b"], "augment": "cutuot4"})"),
            "stages[2].augment: unknown augmentation 'cutuot4'; did you mean 'cutout'?"));
}

TEST_CASE("layers that a stage discards leave the net", "[net]") {
  const NetSpec net = parse_net(R"({"layers": [{"name": "a", "width": 8}, {"name": "x", "inputs": ["a"], "width": 8},
      {"name": "b", "inputs": ["a"], "width": 8}],
      "stages": [{"train": ["a", "x"], "heads": ["x"], "discard": ["x"]}, {"train": ["b"]}]})",
                                "net.json");
  const NetSpec kept = without_discarded(net);
  REQUIRE(kept.layers.size() == 2);
  CHECK(kept.layers[0].name == "a");
  CHECK(kept.layers[1].name == "b");
  REQUIRE(kept.stages.size() == 2);
  CHECK(kept.stages[0].train == std::vector<std::string>{"a"});
  CHECK(kept.stages[0].heads.empty());
  const std::string message = message_of(ErrorKind::usage, [] {
    parse_net(R"({"layers": [{"name": "a", "width": 8}, {"name": "b", "inputs": ["a"], "width": 8}],
        "stages": [{"train": ["a", "b"], "discard": ["a"]}]})",
              "net.json");
  });
  CHECK(has(message, "layer 'b' reads layer 'a', which a stage discards"));
}

TEST_CASE("a stage that stands on what an earlier one discarded is refused", "[net]") {
  const auto message = [](const std::string& stage) {
    return message_of(ErrorKind::usage, [&] {
      parse_net(R"({"layers": [{"name": "a", "width": 8}, {"name": "x", "inputs": ["a"], "width": 8},
          {"name": "y", "inputs": ["x"], "width": 8}, {"name": "b", "inputs": ["a"], "width": 8}],
          "stages": [{"train": ["a", "x"], "discard": ["x"]}, )" +
                    stage + R"(, {"train": ["b"]}]})",
                "net.json");
    });
  };
  CHECK(message(R"({"train": ["y"], "discard": ["y"]})") ==
        "net.json: stage 'y' trains 'y' on 'x', which an earlier stage discarded");
  CHECK(message(R"({"train": ["x", "y"], "discard": ["x", "y"]})") == "no error");  // it trains both
}

// Such a model could not be loaded: of the empty list of heads the reader made the default, another head of layer a than the
// second stage's. The layer that is gone also forbade to train a again.
TEST_CASE("a net without the layers that it discarded is still a net", "[net]") {
  const NetSpec net = parse_net(R"({"layers": [{"name": "a", "width": 8}, {"name": "x", "inputs": ["a"], "width": 8}],
      "stages": [{"name": "s", "train": ["a", "x"], "heads": ["x"], "discard": ["x"], "head": {"grid": 4}},
                 {"name": "t", "train": ["a"], "head": {"grid": 2}}]})",
                                "net.json");
  const NetSpec kept = net_from_json(to_json(without_discarded(net)), "model");
  REQUIRE(kept.stages.size() == 2);
  CHECK(kept.stages[0].heads.empty());
  CHECK(kept.stages[1].heads == std::vector<std::string>{"a"});
  CHECK(kept.classifier == std::vector<std::string>{"a"});
}

// In the order of the file, a layer was computed before those that it reads.
TEST_CASE("a stage trains its layers in the order of the net", "[net]") {
  const NetSpec net = parse_net(R"({"layers": [{"name": "a", "width": 8}, {"name": "b", "inputs": ["a"], "width": 8}],
      "stages": [{"train": ["a"]}, {"train": ["b"]}, {"name": "both", "train": ["b", "a"]}]})",
                                "net.json");
  CHECK(net.stages[2].train == std::vector<std::string>{"a", "b"});
  CHECK(net.stages[2].heads == std::vector<std::string>{"b"});
}

TEST_CASE("stages that cannot work are named", "[net]") {
  const auto message = [](const std::string& stages) {
    return message_of(ErrorKind::usage, [&] {
      parse_net(
          R"({"layers": [{"name": "a", "width": 8}, {"name": "b", "inputs": ["a"], "width": 8}], "stages": )" + stages + "}",
          "net.json");
    });
  };
  CHECK(has(message(R"([{"train": ["a"]}])"), "no stage trains layer 'b'"));
  CHECK(has(message(R"([{"train": ["a", "a"]}, {"train": ["b"]}])"), "stage 'a' trains layer 'a' twice"));
  CHECK(has(message(R"([{"name": "s", "train": ["a"]}, {"name": "s", "train": ["b"]}])"), "there are two stages 's'"));
  CHECK(message(R"([{"train": ["a"], "epochs": 0}, {"train": ["b"]}])") ==
        "net.json: stage 'a': epochs: 0, but no earlier stage trains 'a'; expected 1 or more");
  CHECK(message(R"([{"train": ["a"]}, {"name": "both", "train": ["a", "b"], "epochs": 0}])") ==
        "net.json: stage 'both': epochs: 0, but no earlier stage trains 'b'; expected 1 or more");
  CHECK(message(R"([{"train": ["a"]}, {"train": ["b"]}, {"name": "again", "train": ["b"], "epochs": 0}])") == "no error");
}

TEST_CASE("layers of more weights than gradients can index are refused before there is room for them", "[net]") {
  const auto message = [](std::size_t width, std::size_t kernel) {
    const std::string upper = fmt::format(R"({{"name": "b", "width": {}, "kernel": {}}})", width, kernel);
    return message_of(ErrorKind::usage, [&] { geometry(R"({"name": "a", "width": 65536}, )" + upper, 8, 8, 64); });
  };
  CHECK(message(65536, 3) == "layer 'b': 38654705664 weights are more than this build can index");
  CHECK(message(65536, 2) == "layer 'b': 17179869184 weights are more than this build can index");
  CHECK(message(65535, 2) == "no error");
}

TEST_CASE("maps whose sums would not fit 32 bits are refused", "[net]") {
  const NetSpec net = parse_net(R"({"layers": [{"name": "a", "width": 8}]})", "net.json");
  CHECK(derive_geometry(net, 512, 512, 64).size() == 1);
  const std::string message = message_of(ErrorKind::usage, [&] { derive_geometry(net, 513, 512, 64); });
  CHECK(has(message, "layer 'a': a map of 513x512 pixels; expected at most 262144 pixels"));
}
