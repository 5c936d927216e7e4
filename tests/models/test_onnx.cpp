// Bytes of ONNX files. What a graph computes is tested in tests/peers/test_onnx.py, by onnxruntime.
#include <cstdint>
#include <string>
#include <vector>

#include "core/version.h"
#include "models/binary/onnx.h"
#include "models/binary/onnx_parts.h"
#include "models/onnx_writer.h"
#include "tests/layerwise/cases.h"
#include "tests/layerwise/random_model.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::has;

namespace {

std::string bytes(const std::vector<int>& values) { return {values.begin(), values.end()}; }

// Tag and length of a field of less than 128 bytes, then these.
std::string field(int tag, const std::string& content) { return bytes({tag, static_cast<int>(content.size())}) + content; }

}  // namespace

TEST_CASE("a graph is a message with the fields of onnx.proto") {
  OnnxGraph graph;
  graph.input({"x", OnnxType::u8, {"N", 2}, "d"});
  graph.output({"y", OnnxType::f32, {2}, ""});
  graph.output_node("y", "Cast", {"x"}, {{"to", std::int64_t{1}}});
  const std::string attribute = bytes({0x0a, 2, 't', 'o', 0x18, 1, 0xa0, 0x01, 2});  // name, i, type INT
  const std::string node =
      bytes({0x0a, 1, 'x', 0x12, 1, 'y', 0x1a, 1, 'y', 0x22, 4, 'C', 'a', 's', 't'}) + field(0x2a, attribute);
  const std::string sizes = field(0x0a, bytes({0x12, 1, 'N'})) + field(0x0a, bytes({0x08, 2}));  // dim_param, dim_value
  const std::string input =
      bytes({0x0a, 1, 'x'}) + field(0x12, field(0x0a, bytes({0x08, 2}) + field(0x12, sizes))) + field(0x1a, "d");
  const std::string output =
      bytes({0x0a, 1, 'y'}) + field(0x12, field(0x0a, bytes({0x08, 1, 0x12, 4, 0x0a, 2, 0x08, 2}))) + field(0x1a, "");
  const std::string content = field(0x0a, node) + field(0x12, "net") + field(0x5a, input) + field(0x62, output);
  REQUIRE(content.size() == 77);
  CHECK(graph.file("t", {{"k", "v"}}) == bytes({0x08, 8}) + field(0x12, "bitloom") + field(0x1a, version) + field(0x32, "t") +
                                             field(0x3a, content) + bytes({0x42, 4, 0x0a, 0, 0x10, 17}) +
                                             bytes({0x72, 6, 0x0a, 1, 'k', 0x12, 1, 'v'}));
}

TEST_CASE("constants are little-endian and have names of their own") {
  OnnxGraph graph;
  graph.scope("a");
  CHECK(graph.constant<std::int16_t>({2, 1}, {1, -2}) == "a/constant");
  CHECK(graph.scalar(1.0F) == "a/constant_2");
  CHECK(graph.node("Add", {"a/constant", "a/constant_2"}) == "a/Add");
  const std::string file = graph.file("", {});
  CHECK(has(file, bytes({0x08, 2, 0x08, 1, 0x10, 5}) + field(0x42, "a/constant") + field(0x4a, bytes({1, 0, 0xfe, 0xff}))));
  CHECK(has(file, bytes({0x10, 1}) + field(0x42, "a/constant_2") + field(0x4a, bytes({0, 0, 0x80, 0x3f}))));
}

TEST_CASE("a byte of an ONNX file holds eight weights, or five where one is 0") {
  OnnxGraph graph;
  OnnxSigns signs(graph);
  graph.scope("w");
  signs.unpack({-1, 1, -1, 1, 1, 1, 1, -1, 1, -1}, {2, 5});
  // u8 (2): the first weight is the lowest bit.
  CHECK(has(graph.file("", {}), bytes({0x08, 2, 0x10, 2}) + field(0x42, "w/constant") + field(0x4a, bytes({0x85, 0x02}))));
  graph.scope("t");
  signs.unpack({-1, 0, 1, 1, -1, 1}, {6});
  // Digits 0 1 2 2 0 of base 3, the lowest first, then 2.
  CHECK(has(graph.file("", {}), bytes({0x08, 2, 0x10, 2}) + field(0x42, "t/constant") + field(0x4a, bytes({3 + 18 + 54, 2}))));
}

TEST_CASE("operators of another domain name it, and the file has its version") {
  OnnxGraph graph;
  graph.scope("a");
  const auto maps = bipolar_maps(graph);
  CHECK(maps->batch() == OnnxSize{std::int64_t{1}});
  CHECK(maps->from_bits("x") == "a/BipolarQuant");
  const std::string domain = "qonnx.custom_op.general";
  const std::string file = graph.file("", {});
  CHECK(has(file, field(0x0a, "a/Sub") + field(0x0a, "a/constant_2") + field(0x12, "a/BipolarQuant") +
                      field(0x1a, "a/BipolarQuant") + field(0x22, "BipolarQuant") + field(0x3a, domain)));
  CHECK(has(file, bytes({0x42, 4, 0x0a, 0, 0x10, 17}) + field(0x42, field(0x0a, domain) + bytes({0x10, 1}))));
  // Limits of means: the share of set bits s is a mean of 2 s - 1.
  maps->above("y", 0.75F);
  CHECK(has(graph.file("", {}), field(0x4a, bytes({0, 0, 0, 0x3f}))));
}

TEST_CASE("a node may have several outputs, an attribute a real number") {
  OnnxGraph graph;
  graph.scope("a");
  CHECK(graph.nodes(2, "Split", {"x"}, {{"e", 1.5F}}) == std::vector<std::string>{"a/Split", "a/Split_2"});
  const std::string attribute = bytes({0x0a, 1, 'e', 0x15, 0, 0, 0xc0, 0x3f, 0xa0, 0x01, 1});  // name, f, type FLOAT
  CHECK(has(graph.file("", {}), field(0x0a, "x") + field(0x12, "a/Split") + field(0x12, "a/Split_2") + field(0x1a, "a/Split") +
                                    field(0x22, "Split") + field(0x2a, attribute)));
}

TEST_CASE("weights that meet several planes of a map are in an ONNX file once") {
  const data::Dataset data = test::small_data(40);
  const auto size = [&](const std::string& thresholds) {
    const std::string net = R"({"head": {"kind": "linear", "grid": 1}, "layers": [
        {"name": "a", "width": 128, "thresholds": )" +
                            thresholds + R"(}, {"name": "b", "inputs": ["a"], "width": 256}],
        "stages": [{"train": ["a"]}, {"train": ["b"]}]})";
    return to_onnx(test::random_model(data, net), {}).size();
  };
  // The weights of "b" are 36,864 bytes; limits of "a" for two more thresholds, 1,024, and a few operators come to them.
  CHECK(size("3") < size("1") + 3000);
}
