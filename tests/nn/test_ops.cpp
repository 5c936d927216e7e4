// Every op of nn/ops.h, from the descriptions in tests/cases: its gradients are derivatives, and all backends agree.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <regex>
#include <set>
#include <vector>

#include "nn/backend.h"
#include "tests/cases/gradient.h"
#include "tests/cases/run.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

std::string title(const OpCase& the_case) { return the_case.ops.front() + ": " + the_case.name; }

void check_gradients_of(const std::vector<OpCase>& cases) {
  nn::Engine engine({}, "ref");
  std::size_t checked = 0;
  for (const OpCase& the_case : cases) {
    if (the_case.backward == nullptr || !the_case.is_differentiable || the_case.is_large) continue;
    INFO(title(the_case));
    CHECK(check_gradients(the_case, engine) == "");
    ++checked;
  }
  CHECK(checked > 0);
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool watched = true;
#else
constexpr bool watched = false;
#endif

// Where every address is watched, which takes ten times as long, each case has one of its types: the others have the same
// addresses.
void check_backends(const std::vector<OpCase>& cases) {
  for (const std::string& backend : tested_backends()) {
    nn::Engine engine(device_of(backend), backend);
    std::size_t checked = 0;
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const OpCase& the_case = cases[c];
      for (std::size_t t = 0; t < the_case.types.size(); ++t) {
        const DType dtype = the_case.types[t];
        if (!engine.backend().supports(dtype) || (watched && t != c % the_case.types.size())) continue;
        INFO(backend << ", " << dtype_name(dtype) << ", " << title(the_case));
        CHECK(check_backend(the_case, engine, dtype) == "");
        ++checked;
      }
    }
    CHECK(checked > 0);
  }
}

}  // namespace

TEST_CASE("gradients of products of matrices", "[nn][gradients]") { check_gradients_of(matrix_cases()); }
TEST_CASE("gradients of ops on elements", "[nn][gradients]") { check_gradients_of(element_cases()); }
TEST_CASE("gradients of activations", "[nn][gradients]") { check_gradients_of(activation_cases()); }
TEST_CASE("gradients of lookups", "[nn][gradients]") { check_gradients_of(row_cases()); }
TEST_CASE("gradients of norms", "[nn][gradients]") { check_gradients_of(norm_cases()); }
TEST_CASE("gradients of softmax", "[nn][gradients]") { check_gradients_of(softmax_cases()); }
TEST_CASE("gradients of attention", "[nn][gradients]") { check_gradients_of(attention_cases()); }
TEST_CASE("gradients of convolutions", "[nn][gradients]") { check_gradients_of(conv_cases()); }
TEST_CASE("gradients of pooling", "[nn][gradients]") { check_gradients_of(pool_cases()); }
TEST_CASE("gradients of losses", "[nn][gradients]") { check_gradients_of(loss_cases()); }
TEST_CASE("gradients of categorical variables and pixels", "[nn][gradients]") { check_gradients_of(categorical_cases()); }

TEST_CASE("backends agree on products of matrices", "[nn][backends]") { check_backends(matrix_cases()); }
TEST_CASE("backends agree on elements", "[nn][backends]") { check_backends(element_cases()); }
TEST_CASE("backends agree on activations", "[nn][backends]") { check_backends(activation_cases()); }
TEST_CASE("backends agree on lookups", "[nn][backends]") { check_backends(row_cases()); }
TEST_CASE("backends agree on norms", "[nn][backends]") { check_backends(norm_cases()); }
TEST_CASE("backends agree on softmax", "[nn][backends]") { check_backends(softmax_cases()); }
TEST_CASE("backends agree on attention", "[nn][backends]") { check_backends(attention_cases()); }
TEST_CASE("backends agree on convolutions", "[nn][backends]") { check_backends(conv_cases()); }
TEST_CASE("backends agree on pooling", "[nn][backends]") { check_backends(pool_cases()); }
TEST_CASE("backends agree on losses", "[nn][backends]") { check_backends(loss_cases()); }
TEST_CASE("backends agree on categorical variables and pixels", "[nn][backends]") { check_backends(categorical_cases()); }
TEST_CASE("backends agree on optimisers", "[nn][backends]") { check_backends(optimizer_cases()); }

// Cases have no NaN. One that was not the first of its window was passed over: the net went on as if nothing had happened.
TEST_CASE("backends agree that a NaN is the largest of its window, the first of several", "[nn][backends]") {
  constexpr double no_number = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  // Windows of 2 x 2 in one row; one channel.
  const std::vector<double> x = {1, 2, no_number, 9, 3, infinity,  no_number, no_number,  //
                                 0, 5, 4,         7, 8, no_number, 6,         -infinity};
  const std::vector<std::uint8_t> places = {3, 0, 3, 0};
  for (const std::string& backend : tested_backends()) {
    nn::Engine engine(device_of(backend), backend);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      if (!engine.backend().supports(dtype)) continue;
      INFO(backend << ", " << dtype_name(dtype));
      nn::Tensor y = engine.zeros({1, 1, 4, 1}, dtype, nn::Use::data);
      nn::Tensor which = engine.zeros({1, 1, 4, 1}, DType::u8, nn::Use::data);
      nn::max_pool(engine, 2, to_tensor(engine, x, {1, 2, 8, 1}, dtype), y, which);
      const std::vector<double> found = to_numbers(engine, y);
      REQUIRE(found.size() == 4);
      CHECK(found[0] == 5);
      for (std::size_t i = 1; i < 4; ++i) CHECK(std::isnan(found[i]));
      CHECK(engine.to_host<std::uint8_t>(which) == places);
    }
  }
}

// BITLOOM_TEST_SEED draws others.
TEST_CASE("backends agree on random shapes", "[nn][backends][random]") {
  const char* text = std::getenv("BITLOOM_TEST_SEED");
  const std::uint64_t seed = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  INFO("BITLOOM_TEST_SEED=" << seed);
  for (const Part& part : all_parts()) {
    Draw draw(seed);
    std::vector<OpCase> cases;
    for (int i = 0; i < (watched ? 3 : 12); ++i) cases.push_back(part.random(draw));
    check_backends(cases);
  }
}

TEST_CASE("every function of ops.h has cases", "[nn][backends]") {
  std::set<std::string> tested;
  for (const Part& part : all_parts()) {
    for (const OpCase& the_case : part.cases()) tested.insert(the_case.ops.begin(), the_case.ops.end());
  }
  const std::string header = read_file(source_folder() / "src/nn/ops.h");
  const std::regex declaration("\n(void|double|std::vector<double>) ([a-z0-9_]+)\\(Engine& ");
  std::size_t functions = 0;
  for (std::sregex_iterator match(header.begin(), header.end(), declaration), end; match != end; ++match) {
    INFO((*match)[2]);
    CHECK(tested.contains((*match)[2]));
    ++functions;
  }
  CHECK(functions == tested.size());
}
