// Descriptions of convolutional nets: what is refused, by which words, and that what is read survives.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/cnn/cnn.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::has;
using bitloom::test::message_of;
using Json = nlohmann::json;

namespace {

constexpr const char* small_net = R"({
  "name": "small",
  "layers": [{"kind": "conv", "channels": 4}, {"kind": "norm"}, {"kind": "global_mean_pool"}, {"kind": "linear"}]
})";

// The message about the small net after a change.
std::string refusal(const std::function<void(Json&)>& change) {
  Json json = Json::parse(small_net);
  change(json);
  return message_of(ErrorKind::usage, [&] { parse_cnn(json.dump(), "net.json"); });
}

CnnConfig with_images(CnnConfig config, const data::ImageShape& image = {32, 32, 3}, std::size_t classes = 10) {
  config.image = image;
  config.classes = classes;
  return config;
}

}  // namespace

TEST_CASE("a wrong description of a convolutional net is refused by the key and what was expected", "[cnn]") {
  CHECK_NOTHROW(parse_cnn(small_net, "net.json"));
  CHECK(message_of(ErrorKind::usage, [&] { parse_cnn("{\"layers\": [", "net.json"); }) == "net.json: not JSON");
  CHECK(message_of(ErrorKind::usage, [&] { parse_cnn("[1]", "net.json"); }) == "net.json: expected a JSON object");
  CHECK(has(refusal([](Json& net) { net["layer"] = 1; }), "net.json: unknown key 'layer'; did you mean 'layers'?"));
  CHECK(has(refusal([](Json& net) { net["image"] = Json::object(); }), "net.json: unknown key 'image'"));
  CHECK(has(refusal([](Json& net) { net.erase("layers"); }), "net.json: \"layers\": null; expected a list of layers"));
  CHECK(has(refusal([](Json& net) { net["layers"] = Json::array(); }), "\"layers\": []; expected a list of layers"));
  CHECK(has(refusal([](Json& net) { net["layers"][1] = "norm"; }), "net.json: layer 1: expected a JSON object"));
  CHECK(has(refusal([](Json& net) { net["layers"][0]["kind"] = "cnov"; }),
            "net.json: layer 0: \"kind\": 'cnov'; did you mean 'conv'?"));
  CHECK(has(refusal([](Json& net) { net["layers"][0].erase("kind"); }), "net.json: layer 0: \"kind\": ''"));
  CHECK(has(refusal([](Json& net) { net["layers"][0]["kind"] = 3; }), "layer 0: \"kind\": 3; expected a text"));
  CHECK(has(refusal([](Json& net) { net["layers"][0]["chanels"] = 3; }),
            "net.json: layer 0: unknown key 'chanels'; did you mean 'channels'?"));
  CHECK(has(refusal([](Json& net) { net["layers"][1]["channels"] = 3; }), "net.json: layer 1: unknown key 'channels'"));
  CHECK(has(refusal([](Json& net) { net["layers"][0].erase("channels"); }),
            "net.json: layer 0: \"channels\": null; expected a whole number from 1 to 8192"));
  for (const Json& wrong : {Json(0), Json(-4), Json(2.5), Json("4"), Json(8193)}) {
    INFO(wrong.dump());
    CHECK(has(refusal([&](Json& net) { net["layers"][0]["channels"] = wrong; }),
              "net.json: layer 0: \"channels\": " + wrong.dump() + "; expected a whole number from 1 to 8192"));
  }
  CHECK(has(refusal([](Json& net) { net["layers"][0]["stride"] = 0; }), "layer 0: \"stride\": 0; expected a whole number"));
  CHECK(
      has(refusal([](Json& net) { net["layers"][3]["scale"] = 0; }), "layer 3: \"scale\": 0; expected a number other than 0"));
  CHECK(has(refusal([](Json& net) { net["layers"][3]["bias"] = 1; }), "layer 3: \"bias\": 1; expected true or false"));
  CHECK(has(refusal([](Json& net) {
              net["layers"][0] = {{"kind", "conv_group"}, {"channels", 4}, {"convolutions", 4}};
            }),
            "layer 0: \"convolutions\": 4; expected a whole number from 1 to 3"));
  CHECK(
      has(refusal([](Json& net) { net["layers"].erase(3); }), "net.json: layer 2: expected a layer of kind linear at the end"));
  CHECK(has(refusal([](Json& net) {
              net["layers"][1] = {{"kind", "linear"}};
            }),
            "net.json: layer 1: expected a layer of kind"));
  CHECK(has(refusal([](Json& net) {
              net["layers"][1] = {{"kind", "whitening"}};
            }),
            "net.json: layer 1: whitening; expected it as layer 0 only"));
  CHECK(has(refusal([](Json& net) { net["activation"] = "gelo"; }), "net.json: \"activation\""));
  CHECK(has(refusal([](Json& net) { net["identity_start"] = "yes"; }), "\"identity_start\": \"yes\"; expected true or false"));
}

TEST_CASE("wrong values of norm and training are refused", "[cnn]") {
  const auto norm = [](const char* key, const Json& value) {
    return refusal([&](Json& net) { net["norm"] = {{key, value}}; });
  };
  CHECK(norm("momentum", 0) == "net.json: \"norm\": \"momentum\": 0; expected more than 0, up to 1");
  CHECK(has(norm("momentum", 1.5), "\"momentum\": 1.5"));
  CHECK(has(norm("epsilon", 0), "\"norm\": \"epsilon\": 0; expected more than 0"));
  CHECK(has(norm("bias_rate", -1), "\"norm\": \"bias_rate\": -1; expected more than 0"));
  CHECK(has(norm("gain", 1), "\"norm\": \"gain\": 1; expected true or false"));
  CHECK(has(norm("momentun", 1), "\"norm\": unknown key 'momentun'; did you mean 'momentum'?"));
  CHECK(has(refusal([](Json& net) { net["norm"] = 1; }), "net.json: \"norm\": expected a JSON object"));
  const auto training = [](const char* key, const Json& value) {
    return refusal([&](Json& net) { net["training"] = {{key, value}}; });
  };
  CHECK(has(training("learning_rate", 0), "net.json: \"training\": `learning_rate`: 0; expected more than 0"));
  CHECK(has(training("learning_rate", "1"), "\"learning_rate\": \"1\"; expected a number"));
  CHECK(has(training("epochs", -1), "`epochs`: -1"));
  CHECK(has(training("batch", 0), "\"batch\": 0; expected a whole number from 1"));
  CHECK(has(training("momentum", 1), "`momentum`: 1; expected 0 up to 1, without 1"));
  CHECK(has(training("label_smoothing", -0.1), "`label_smoothing`: -0.1"));
  CHECK(has(training("weight_decay", -1), "`weight_decay`: -1; expected 0 or more"));
  CHECK(has(training("optimizer", "sdg"), "`optimizer`: 'sdg'; did you mean 'sgd'?"));
  CHECK(has(training("schedule", "triangel"), "`schedule`: 'triangel'; did you mean 'triangle'?"));
  CHECK(has(training("flip", "alternate"), "`flip`: 'alternate'"));
  CHECK(has(training("augment", "crop2,flip"),
            "`augment`: 'crop2,flip'; expected no flip or alternating in it; `flip` says that"));
  CHECK(has(training("augment", "corp2"), "unknown augmentation 'corp2'; did you mean 'crop'?"));
  CHECK(has(training("lookahed", 5), "\"training\": unknown key 'lookahed'; did you mean 'lookahead'?"));
  CnnTraining infinite;
  infinite.learning_rate = std::numeric_limits<double>::quiet_NaN();
  CHECK(has(message_of(ErrorKind::usage, [&] { check(infinite); }), "`learning_rate`: nan"));
}

TEST_CASE("an architecture survives a model file, and damage to it is Error(data)", "[cnn]") {
  for (const std::string& name : cnn_names()) {
    const Json json = architecture_of(with_images(find_cnn(name)));
    const CnnConfig again = parse_cnn_model(json.dump(), "file.x");
    CHECK(architecture_of(again) == json);
    CHECK(again.image == data::ImageShape{32, 32, 3});
    CHECK(again.classes == 10);
  }
  Json all = Json::parse(small_net);
  all["norm"] = {{"momentum", 0.25}, {"epsilon", 1e-3}, {"gain", false}, {"bias_rate", 8}};
  all["activation"] = "silu";
  all["layers"] = {{{"kind", "whitening"}, {"kernel", 3}},
                   {{"kind", "conv"}, {"channels", 7}, {"kernel", 5}, {"stride", 2}},
                   {{"kind", "max_pool"}, {"kernel", 3}},
                   {{"kind", "conv_group"}, {"channels", 9}, {"convolutions", 3}},
                   {{"kind", "basic_block"}, {"channels", 11}, {"stride", 2}},
                   {{"kind", "linear"}, {"bias", false}, {"scale", 0.5}}};
  Json json = architecture_of(with_images(parse_cnn(all.dump(), "it"), {64, 48, 1}, 3));
  for (const char* key : {"name", "layers", "activation", "norm"}) CHECK(json[key] == all[key]);
  CHECK(architecture_of(parse_cnn_model(json.dump(), "it")) == json);

  const auto damage = [&](const std::function<void(Json&)>& change) {
    Json damaged = json;
    change(damaged);
    return message_of(ErrorKind::data, [&] { parse_cnn_model(damaged.dump(), "file.x"); });
  };
  CHECK(has(message_of(ErrorKind::data, [&] { parse_cnn_model("{", "file.x"); }), "file.x: the net's description is not JSON"));
  CHECK(has(damage([](Json& net) { net["layers"][1]["kind"] = "cnov"; }), "file.x: layer 1: \"kind\": 'cnov'"));
  CHECK(has(damage([](Json& net) { net.erase("image"); }), "file.x: no 'image' or 'classes'"));
  CHECK(has(damage([](Json& net) { net["classes"] = 0; }), "\"classes\": 0"));
  for (const char* side : {"height", "width", "channels"}) {
    INFO(side);
    CHECK(has(damage([&](Json& net) { net["image"][side] = 0; }), std::string("\"image\": \"") + side + "\": 0"));
    // A net of images of 0 bytes was an internal error.
    CHECK(has(damage([&](Json& net) { net["image"].erase(side); }), std::string("\"image\": \"") + side + "\": null"));
  }
}

// Exports did not know the other one.
TEST_CASE("an activation of a convolutional net has the one of its names that models have", "[cnn]") {
  Json json = Json::parse(small_net);
  json["activation"] = "swish";
  const CnnConfig config = parse_cnn(json.dump(), "net.json");
  CHECK(config.activation == "silu");
  Json model = architecture_of(with_images(config));
  CHECK(model["activation"] == "silu");
  model["activation"] = "swish";  // as earlier versions wrote it
  CHECK(parse_cnn_model(model.dump(), "file.x").activation == "silu");
}

TEST_CASE("named convolutional nets are those of their papers", "[cnn]") {
  REQUIRE(cnn_names().size() >= 4);
  for (const std::string& name : cnn_names()) {
    INFO(name);
    const CnnConfig config = find_cnn(name);
    CHECK(config.name == name);
    CHECK_NOTHROW(check(config.training));
    Cnn net(with_images(config));
    CHECK(net.layers->output(net.input(5)) == nn::Shape{5, 10});
    // The rows of its table add up to it.
    std::uint64_t parameters = 0;
    double cost = 0;
    for (const CnnRow& row : describe(net)) {
      parameters += row.parameters;
      cost += row.cost;
    }
    CHECK(parameters == net.parameters());
    CHECK(cost == Approx(net.cost()).epsilon(1e-12));
  }
  Cnn resnet(with_images(find_cnn("resnet18")));
  CHECK(resnet.parameters() == 11173962);  // as torchvision's with a stem of 3 x 3
  CHECK(0.5 * resnet.cost() == Approx(0.5565e9).epsilon(0.01));
  // Jordan 2024: about 2 million; 24 biases, six convolutions, two vectors of norm biases per group, the linear layer.
  Cnn airbench(with_images(find_cnn("airbench94")));
  CHECK(airbench.parameters() ==
        24 + 9 * (24 * 64 + 64 * 64 + 64 * 256 + 256 * 256 + 2 * 256 * 256) + 2 * (64 + 256 + 256) + 256 * 10);
  CHECK(has(message_of(ErrorKind::usage, [&] { find_cnn("resnet81"); }), "unknown net 'resnet81'; did you mean 'resnet18'?"));
}

TEST_CASE("a net is found in a file, whose errors name it", "[cnn]") {
  const test::TempDir folder;
  test::write_file(folder / "net.json", std::string("// A comment.\n") + small_net);
  CHECK(find_cnn((folder / "net.json").string()).name == "small");
  test::write_file(folder / "bad.json", "{\"layers\": 3}");
  CHECK(has(message_of(ErrorKind::usage, [&] { find_cnn((folder / "bad.json").string()); }), "bad.json: \"layers\": 3"));
  CHECK(has(message_of(ErrorKind::usage, [&] { find_cnn((folder / "none.json").string()); }), "none.json"));
}

TEST_CASE("nets that images do not fit into are refused by the layer", "[cnn]") {
  const auto refused = [](const char* layers, const data::ImageShape& image) {
    const CnnConfig config = with_images(parse_cnn(std::string("{\"layers\": [") + layers + "]}", "it"), image);
    return message_of(ErrorKind::usage, [&] { Cnn net(config); });
  };
  CHECK(has(refused(R"({"kind": "max_pool", "kernel": 5}, {"kind": "linear"})", {4, 4, 3}), "max_pool"));
  CHECK(has(refused(R"({"kind": "global_max_pool"}, {"kind": "linear"})", {8, 9, 3}),
            "layers.0: maps (1, 8, 9, 3); expected square"));
  CHECK(has(refused(R"({"kind": "global_max_pool"}, {"kind": "linear"})", {16, 16, 3}), "at most 15 pixels"));
  CHECK(refused(R"({"kind": "global_max_pool"}, {"kind": "linear"})", {15, 15, 3}) == "no error");
}
