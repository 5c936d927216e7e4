#include "nn/tensor.h"

#include <vector>

#include "nn/engine.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

namespace bitloom::nn {
namespace {

using test::device_of;
using test::has;
using test::message_of;
using test::tested_backends;

}  // namespace

TEST_CASE("shapes count elements and rows", "[nn][tensor]") {
  const Shape shape = {2, 3, 5};
  CHECK(shape.axes() == 3);
  CHECK(shape.size() == 30);
  CHECK(shape.rows() == 6);
  CHECK(shape.back() == 5);
  CHECK(shape[1] == 3);
  CHECK(to_text(shape) == "(2, 3, 5)");
  CHECK(shape.with(1, 7) == Shape{2, 7, 5});
  CHECK(shape == Shape{2, 3, 5});
  CHECK_FALSE(shape == Shape{2, 3, 5, 1});

  const Shape scalar;
  CHECK(scalar.axes() == 0);
  CHECK(scalar.size() == 1);
  CHECK(scalar.rows() == 1);
  CHECK(scalar.back() == 1);
  CHECK(to_text(scalar) == "()");

  CHECK(Shape{0, 7}.size() == 0);
  CHECK(Shape{0, 7}.rows() == 0);
  CHECK(Shape{7, 0}.rows() == 7);
  CHECK(Shape{9}.rows() == 1);
}

TEST_CASE("shapes refuse what they cannot be", "[nn][tensor]") {
  CHECK(has(message_of(ErrorKind::internal, [] { Shape{1, 1, 1, 1, 1, 1, 1}; }), "7 axes"));
  CHECK(has(message_of(ErrorKind::internal, [] { (void)Shape{2, 3}.with(2, 1); }), "(2, 3): no axis 2"));
  const std::size_t huge = std::size_t{1} << 40U;
  CHECK(has(message_of(ErrorKind::usage, [&] { (void)Shape{huge, huge}.size(); }), "too many elements"));
  CHECK(Shape{huge, 3}.size() == 3 * huge);
}

TEST_CASE("a tensor gives back what was written to it, in every type", "[nn][tensor]") {
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    Engine engine(device_of(backend), backend);
    const std::vector<float> floats = {1, -2, 3.5F, 0, 1e30F, -1e-30F};
    const std::vector<std::int32_t> integers = {-1, 0, 7};
    const std::vector<bf16> halves = {{0x3F80}, {0x8000}, {0x7FC1}};
    CHECK(engine.to_host<float>(engine.from<float>(floats, {2, 3}, Use::data)) == floats);
    CHECK(engine.to_host<std::int32_t>(engine.from<std::int32_t>(integers, {3}, Use::data)) == integers);
    CHECK(engine.to_host<bf16>(engine.from<bf16>(halves, {3}, Use::data)) == halves);
    CHECK(engine.to_host<double>(engine.zeros({3, 2}, DType::f64, Use::data)) == std::vector<double>(6, 0.0));
    CHECK(engine.to_host<float>(engine.empty({0, 7}, DType::f32, Use::data)).empty());
  }
}

TEST_CASE("slices and reshaped tensors share memory", "[nn][tensor]") {
  Engine engine({}, "ref");
  const std::vector<float> numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  Tensor tensor = engine.from<float>(numbers, {4, 3}, Use::activations);
  const std::uint64_t in_use = engine.pool().total().now;
  CHECK(in_use == 48);

  Tensor middle = tensor.slice(1, 3);
  CHECK(middle.shape() == Shape{2, 3});
  CHECK(middle.size() == 6);
  CHECK(middle.bytes() == 24);
  CHECK(engine.to_host<float>(middle) == std::vector<float>{3, 4, 5, 6, 7, 8});
  middle.as<float>()[0] = -1;
  CHECK(tensor.as<float>()[3] == -1);

  const Tensor deeper = middle.slice(1, 2).reshaped({3, 1});
  CHECK(deeper.shape() == Shape{3, 1});
  CHECK(engine.to_host<float>(deeper) == std::vector<float>{6, 7, 8});
  CHECK(tensor.slice(2, 2).size() == 0);
  CHECK(tensor.slice(4, 4).size() == 0);
  CHECK(tensor.slice(0, 4).data() == tensor.data());
  CHECK(engine.zeros({0, 3}, DType::f32, Use::data).slice(0, 0).shape() == Shape{0, 3});

  CHECK(tensor.reshaped({2, 6}).shape() == Shape{2, 6});
  CHECK(tensor.reshaped({12}).data() == tensor.data());
  CHECK(engine.pool().total().now == in_use);
  tensor = {};
  middle = {};
  CHECK(engine.pool().total().now == in_use);  // the part of a part is still there
  CHECK(engine.to_host<float>(deeper) == std::vector<float>{6, 7, 8});
}

TEST_CASE("all of a tensor's memory may be counted as something else, through any part", "[nn][tensor]") {
  Engine engine({}, "ref");
  const Tensor tensor = engine.zeros({4, 3}, DType::f32, Use::activations);
  tensor.slice(1, 2).count_as(Use::stash);
  CHECK(engine.pool().count(Use::activations).now == 0);
  CHECK(engine.pool().count(Use::stash).now == 48);
}

TEST_CASE("tensors refuse what they are not", "[nn][tensor]") {
  Engine engine({}, "ref");
  Tensor tensor = engine.zeros({4, 3}, DType::f32, Use::activations);
  CHECK(has(message_of(ErrorKind::internal, [&] { (void)tensor.reshaped({5, 2}); }), "f32 (4, 3) cannot be seen as (5, 2)"));
  CHECK(has(message_of(ErrorKind::internal, [&] { (void)tensor.slice(2, 5); }), "f32 (4, 3) has no rows 2 to 5"));
  CHECK(has(message_of(ErrorKind::internal, [&] { (void)tensor.slice(3, 2); }), "no rows 3 to 2"));
  const Tensor scalar = engine.zeros({}, DType::f32, Use::data);
  CHECK(scalar.size() == 1);
  CHECK(has(message_of(ErrorKind::internal, [&] { (void)scalar.slice(0, 1); }), "no rows"));
  CHECK(has(message_of(ErrorKind::internal, [&] { (void)tensor.as<double>(); }), "f32 (4, 3)"));
  CHECK(has(message_of(ErrorKind::internal, [&] { (void)Tensor().as<float>(); }), "none"));
  CHECK(has(message_of(ErrorKind::internal, [&] { (void)engine.to_host<std::int32_t>(tensor); }), "f32 (4, 3)"));
  const std::vector<float> few(11);
  CHECK(has(message_of(ErrorKind::internal, [&] { engine.write(tensor, std::as_bytes(std::span(few))); }), "44 bytes"));
  CHECK(has(message_of(ErrorKind::internal, [&] { (void)engine.from<float>(few, {4, 3}, Use::data); }), "f32 (4, 3)"));
  CHECK(to_text(Tensor()) == "none");
  CHECK_FALSE(Tensor());
  CHECK(tensor);
}

TEST_CASE("an engine is one of the backends, by name", "[nn][tensor]") {
  const std::vector<std::string> names = backends();
  REQUIRE_FALSE(names.empty());
  CHECK(Engine().backend_name() == names.front());
  CHECK(Engine({}, "ref").backend_name() == "ref");
  const std::string message = message_of(ErrorKind::usage, [] { Engine({}, "rev"); });
  CHECK(has(message, "`backend`: 'rev'"));
  CHECK(has(message, "ref"));
}

TEST_CASE("devices are named as users write them", "[nn][tensor]") {
  CHECK(parse_device("--device", "cpu") == Device{});
  CHECK(parse_device("--device", "cuda") == Device{Device::Kind::cuda, 0});
  CHECK(parse_device("--device", "cuda:3") == Device{Device::Kind::cuda, 3});
  CHECK(name_of(parse_device("--device", "cuda:3")) == "cuda:3");
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "CPU"}) {
    const std::string message = message_of(ErrorKind::usage, [&] { (void)parse_device("--device", wrong); });
    CHECK(has(message, std::string("--device: '") + wrong + "'"));
  }
}

}  // namespace bitloom::nn
