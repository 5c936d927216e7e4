// The runners of cases themselves: each kind of mistake that an op can make is one that they see.
#include <omp.h>

#include "tests/cases/gradient.h"
#include "tests/cases/run.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// y = 2 x and which = 1 throughout; dx = 2 dy. After each pass something may go wrong.
OpCase doubling(std::size_t n, const Run& after_forward = nullptr, const Run& after_backward = nullptr) {
  OpCase c;
  c.ops = {"scale_add"};
  c.inputs = {values("x", {n}, 1)};
  c.outputs = {overwritten("y", {n}), overwritten("which", {n}, Kind::u8)};
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::scale_add(engine, 2, t["x"], 0, t["y"]);
    nn::fill(engine, t["which"], 1);
    if (after_forward != nullptr) after_forward(engine, t);
  };
  c.upstream = {values("dy", {n}, 2)};
  c.gradients = {added_to("dx", {n}, 3, Kind::values)};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::scale_add(engine, 2, t["dy"], 1, t["dx"]);
    if (after_backward != nullptr) after_backward(engine, t);
  };
  return c;
}

// The float element i of a tensor, which may lie outside of it.
float& element(Tensors& t, const char* name, std::ptrdiff_t i) { return static_cast<float*>(t[name].data())[i]; }

std::string complaint(const Run& after_forward, const Run& after_backward = nullptr) {
  nn::Engine engine({}, "ref");
  return check_backend(doubling(33, after_forward, after_backward), engine, DType::f32);
}

}  // namespace

TEST_CASE("the runner of cases accepts an op that does what it should", "[nn][cases]") {
  nn::Engine engine({}, "ref");
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    CHECK(check_backend(doubling(33), engine, dtype) == "");
    CHECK(check_backend(doubling(0), engine, dtype) == "");
  }
  CHECK(check_gradients(doubling(33), engine) == "");
}

TEST_CASE("the runner of cases sees what an op does wrong", "[nn][cases]") {
  using nn::Engine;
  CHECK(has(complaint([](Engine&, Tensors& t) {
              if (t["y"].dtype() == DType::f32) element(t, "y", 5) *= 1.001F;
            }),
            "y: element 5"));
  CHECK(has(complaint([](Engine&, Tensors& t) {
              if (t["y"].dtype() == DType::f32) element(t, "y", 32) = std::bit_cast<float>(~0U);  // as if it were not written
            }),
            "y: element 32 is"));
  CHECK(has(complaint([](Engine&, Tensors& t) { element(t, "y", t["y"].dtype() == DType::f32 ? 33 : 66) = 0; }),
            "something was written next to y"));
  CHECK(has(complaint([](Engine&, Tensors& t) { element(t, "y", -1) = 0; }), "something was written next to y"));
  CHECK(has(complaint([](Engine&, Tensors& t) { element(t, "x", 7) = 0; }), "forward: x was written"));
  CHECK(has(complaint([](Engine& engine, Tensors& t) {
              if (t["y"].dtype() == DType::f32) nn::fill(engine, t["which"], 2);
            }),
            "which: element 0 is 2, expected 1"));
  CHECK(has(complaint([](Engine&, Tensors& t) {
              if (omp_get_max_threads() == 3) element(t, "y", 0) = std::nextafter(element(t, "y", 0), 9.0F);
            }),
            "3 threads and 1 do not give the same bits"));
  CHECK(has(complaint([](Engine&, Tensors& t) {
              const bool is_aligned = reinterpret_cast<std::uintptr_t>(t["y"].data()) % 64 == 0;
              if (t["y"].dtype() == DType::f32 && !is_aligned) element(t, "y", 3) += 1;
            }),
            "misaligned: y: element 3"));
  CHECK(has(complaint(nullptr, [](Engine&, Tensors& t) { element(t, "dy", 0) = 0; }), "backward: dy was written"));
  CHECK(has(complaint(nullptr, [](Engine&, Tensors& t) { element(t, "y", 0) = 0; }), "backward: y was written"));
  CHECK(has(complaint(nullptr,
                      [](Engine&, Tensors& t) {
                        if (t["y"].dtype() == DType::f32) element(t, "dx", 9) += 1;
                      }),
            "dx: element 9"));

  // In place, where the op reads an input again that it has already overwritten.
  OpCase in_place = doubling(33);
  in_place.forward_in_place = {{"y", "x"}};
  Engine engine({}, "ref");
  CHECK(check_backend(in_place, engine, DType::f32) == "");
  in_place.forward = [](Engine& e, Tensors& t) {
    nn::fill(e, t["y"], 0);
    nn::scale_add(e, 2, t["x"], 0, t["y"]);
    nn::fill(e, t["which"], 1);
  };
  CHECK(has(check_backend(in_place, engine, DType::f32), "in place: y"));
}

TEST_CASE("gradient checks see gradients that are wrong", "[nn][cases]") {
  nn::Engine engine({}, "ref");
  const auto off = [](std::size_t where, double error) {
    return [=](nn::Engine&, Tensors& t) { static_cast<double*>(t["dx"].data())[where] += error; };
  };
  CHECK(has(check_gradients(doubling(7, nullptr, off(6, 1e-5)), engine), "dx: element 6"));
  // Not every element of a large tensor is looked at alone, but every one counts.
  for (const std::size_t where : {0U, 1U, 500U, 777U, 999U}) {
    CHECK(has(check_gradients(doubling(1000, nullptr, off(where, 1e-2)), engine), "dx: "));
  }
  CHECK(check_gradients(doubling(1000), engine) == "");
}
