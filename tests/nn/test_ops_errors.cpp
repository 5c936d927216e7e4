// Errors of ops.h: every tensor of every op is left out, put on another device, and given another type and other shapes.
#include <map>

#include "nn/few_bit.h"
#include "nn/ops.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

namespace bitloom::nn {
namespace {

using test::has;
using test::message_of;

// A tensor of an op, named as in ops.h.
struct Argument {
  const char* name;
  DType dtype;
  Shape shape;
  enum Freedom { fixed, may_be_missing, any_float, any_type } freedom = fixed;
};

using Arguments = std::map<std::string, Tensor>;

struct Call {
  const char* op;
  std::vector<Argument> arguments;
  void (*call)(Engine&, Arguments&);
};

FewBitTable small_table() {
  FewBitTable table;
  table.boundaries = {0};
  table.levels = {0, 1};
  return table;
}

constexpr AttentionShape heads = {2, 3, 1};
const AttentionMask& mask() {
  static const AttentionMask mask = AttentionMask::full(5, 7);
  return mask;
}

constexpr DType f32 = DType::f32;
constexpr DType u8 = DType::u8;
constexpr DType i32 = DType::i32;
const Shape queries = {2, 5, 6}, keys = {2, 7, 6}, of_lse = {2, 2, 5};

const std::vector<Call>& calls() {
  static const std::vector<Call> table = {
      {"matmul",
       {{"a", f32, {5, 7}}, {"b", f32, {7, 3}}, {"out", f32, {5, 3}}, {"bias", f32, {3}, Argument::may_be_missing}},
       [](Engine& e, Arguments& t) { matmul(e, t["a"], t["b"], t["out"], {.bias = t["bias"]}); }},
      {"add_row_sums",
       {{"x", f32, {5, 7}}, {"sums", f32, {7}}},
       [](Engine& e, Arguments& t) { add_row_sums(e, t["x"], t["sums"]); }},
      {"convert",
       {{"x", f32, {5, 7}, Argument::any_float}, {"y", DType::bf16, {5, 7}, Argument::any_float}},
       [](Engine& e, Arguments& t) { convert(e, t["x"], t["y"]); }},
      {"fill", {{"y", f32, {5, 7}, Argument::any_type}}, [](Engine& e, Arguments& t) { fill(e, t["y"], 1); }},
      {"add",
       {{"a", f32, {5, 7}}, {"b", f32, {5, 7}}, {"y", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { add(e, t["a"], t["b"], t["y"]); }},
      {"scale_add",
       {{"x", f32, {5, 7}, Argument::any_float}, {"y", f32, {5, 7}, Argument::any_float}},
       [](Engine& e, Arguments& t) { scale_add(e, 1, t["x"], 2, t["y"]); }},
      {"add_finite",
       {{"x", f32, {5, 7}, Argument::any_float}, {"y", f32, {5, 7}, Argument::any_float}},
       [](Engine& e, Arguments& t) { add_finite(e, 2, t["x"], t["y"]); }},
      {"clamp", {{"x", f32, {5, 7}}, {"y", f32, {5, 7}}}, [](Engine& e, Arguments& t) { clamp(e, 2, t["x"], t["y"]); }},
      {"clamp_backward",
       {{"x", f32, {5, 7}}, {"dy", f32, {5, 7}}, {"dx", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { clamp_backward(e, 2, t["x"], t["dy"], t["dx"]); }},
      {"activate",
       {{"x", f32, {5, 7}}, {"y", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { activate(e, find_activation("gelu"), t["x"], t["y"]); }},
      {"activate_backward",
       {{"x", f32, {5, 7}}, {"dy", f32, {5, 7}}, {"dx", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { activate_backward(e, find_activation("gelu"), t["x"], t["dy"], t["dx"]); }},
      {"activate_few_bit",
       {{"x", f32, {5, 7}}, {"y", f32, {5, 7}}, {"stash", u8, {5}}},
       [](Engine& e, Arguments& t) {
         activate_few_bit(e, find_activation("gelu"), small_table(), t["x"], t["y"], t["stash"]);
       }},
      {"activate_few_bit_backward",
       {{"stash", u8, {5}}, {"dy", f32, {5, 7}}, {"dx", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { activate_few_bit_backward(e, small_table(), t["stash"], t["dy"], t["dx"]); }},
      {"quantise_groups",
       {{"x", f32, {5, 70}, Argument::any_float}, {"packed", u8, {132}}, {"ranges", f32, {2, 2}}},
       [](Engine& e, Arguments& t) { quantise_groups(e, {.bits = 3}, t["x"], t["packed"], t["ranges"]); }},
      {"restore_groups",
       {{"packed", u8, {132}}, {"ranges", f32, {2, 2}}, {"x", f32, {5, 70}, Argument::any_float}},
       [](Engine& e, Arguments& t) { restore_groups(e, 3, t["packed"], t["ranges"], t["x"]); }},
      {"dropout",
       {{"x", f32, {5, 7}}, {"y", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { dropout(e, {.rate = 0.5}, t["x"], t["y"]); }},
      {"gather",
       {{"table", f32, {9, 7}}, {"ids", i32, {5}}, {"out", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { gather(e, t["table"], t["ids"], t["out"]); }},
      {"scatter_add",
       {{"dout", f32, {5, 7}}, {"ids", i32, {5}}, {"dtable", f32, {9, 7}}},
       [](Engine& e, Arguments& t) { scatter_add(e, t["dout"], t["ids"], t["dtable"]); }},
      {"layer_norm",
       {{"x", f32, {5, 7}}, {"gain", f32, {7}}, {"bias", f32, {7}}, {"y", f32, {5, 7}}, {"mean", f32, {5}}, {"rstd", f32, {5}}},
       [](Engine& e, Arguments& t) { layer_norm(e, t["x"], t["gain"], t["bias"], 1e-5, t["y"], t["mean"], t["rstd"]); }},
      {"layer_norm_backward",
       {{"dy", f32, {5, 7}},
        {"x", f32, {5, 7}},
        {"gain", f32, {7}},
        {"mean", f32, {5}},
        {"rstd", f32, {5}},
        {"dx", f32, {5, 7}},
        {"dgain", f32, {7}},
        {"dbias", f32, {7}}},
       [](Engine& e, Arguments& t) {
         layer_norm_backward(e, t["dy"], t["x"], t["gain"], t["mean"], t["rstd"], t["dx"], t["dgain"], t["dbias"]);
       }},
      {"batch_norm",
       {{"x", f32, {5, 7}},
        {"gain", f32, {7}},
        {"bias", f32, {7}},
        {"y", f32, {5, 7}},
        {"mean", f32, {7}},
        {"variance", f32, {7}}},
       [](Engine& e, Arguments& t) { batch_norm(e, t["x"], t["gain"], t["bias"], 1e-5, t["y"], t["mean"], t["variance"]); }},
      {"batch_norm_backward",
       {{"dy", f32, {5, 7}},
        {"x", f32, {5, 7}},
        {"gain", f32, {7}},
        {"mean", f32, {7}},
        {"variance", f32, {7}},
        {"dx", f32, {5, 7}},
        {"dgain", f32, {7}},
        {"dbias", f32, {7}}},
       [](Engine& e, Arguments& t) {
         batch_norm_backward(e, t["dy"], t["x"], t["gain"], t["mean"], t["variance"], 1e-5, t["dx"], t["dgain"], t["dbias"]);
       }},
      {"batch_norm_inference",
       {{"x", f32, {5, 7}},
        {"gain", f32, {7}},
        {"bias", f32, {7}},
        {"mean", f32, {7}},
        {"variance", f32, {7}},
        {"y", f32, {5, 7}}},
       [](Engine& e, Arguments& t) {
         batch_norm_inference(e, t["x"], t["gain"], t["bias"], t["mean"], t["variance"], 1e-5, t["y"]);
       }},
      {"softmax", {{"x", f32, {5, 7}}, {"y", f32, {5, 7}}}, [](Engine& e, Arguments& t) { softmax(e, t["x"], t["y"]); }},
      {"softmax_backward",
       {{"y", f32, {5, 7}}, {"dy", f32, {5, 7}}, {"dx", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { softmax_backward(e, t["y"], t["dy"], t["dx"]); }},
      {"attention",
       {{"q", f32, queries}, {"k", f32, keys}, {"v", f32, keys}, {"out", f32, queries}, {"lse", f32, of_lse}},
       [](Engine& e, Arguments& t) { attention(e, heads, mask(), {}, {t["q"]}, {t["k"]}, {t["v"]}, {t["out"]}, t["lse"]); }},
      {"attention_backward",
       {{"q", f32, queries},
        {"k", f32, keys},
        {"v", f32, keys},
        {"out", f32, queries},
        {"lse", f32, of_lse},
        {"dout", f32, queries},
        {"dq", f32, queries},
        {"dk", f32, keys},
        {"dv", f32, keys}},
       [](Engine& e, Arguments& t) {
         attention_backward(e, heads, mask(), {}, {t["q"]}, {t["k"]}, {t["v"]}, {t["out"]}, t["lse"], {t["dout"]}, {t["dq"]},
                            {t["dk"]}, {t["dv"]});
       }},
      {"conv2d",
       {{"x", f32, {2, 6, 7, 3}},
        {"w", f32, {4, 3, 3, 3}},
        {"bias", f32, {4}, Argument::may_be_missing},
        {"y", f32, {2, 6, 7, 4}}},
       [](Engine& e, Arguments& t) { conv2d(e, {.padding = 1}, t["x"], t["w"], t["bias"], t["y"]); }},
      {"conv2d_backward_data",
       {{"dy", f32, {2, 6, 7, 4}}, {"w", f32, {4, 3, 3, 3}}, {"dx", f32, {2, 6, 7, 3}}},
       [](Engine& e, Arguments& t) { conv2d_backward_data(e, {.padding = 1}, t["dy"], t["w"], t["dx"]); }},
      {"conv2d_backward_weights",
       {{"x", f32, {2, 6, 7, 3}}, {"dy", f32, {2, 6, 7, 4}}, {"dw", f32, {4, 3, 3, 3}}},
       [](Engine& e, Arguments& t) { conv2d_backward_weights(e, {.padding = 1}, t["x"], t["dy"], t["dw"]); }},
      {"max_pool",
       {{"x", f32, {2, 6, 4, 3}}, {"y", f32, {2, 3, 2, 3}}, {"which", u8, {2, 3, 2, 3}}},
       [](Engine& e, Arguments& t) { max_pool(e, 2, t["x"], t["y"], t["which"]); }},
      {"max_pool_backward",
       {{"dy", f32, {2, 3, 2, 3}}, {"which", u8, {2, 3, 2, 3}}, {"dx", f32, {2, 6, 4, 3}}},
       [](Engine& e, Arguments& t) { max_pool_backward(e, 2, t["dy"], t["which"], t["dx"]); }},
      {"upsample",
       {{"x", f32, {2, 3, 2, 3}}, {"y", f32, {2, 6, 4, 3}}},
       [](Engine& e, Arguments& t) { upsample(e, 2, t["x"], t["y"]); }},
      {"upsample_backward",
       {{"dy", f32, {2, 6, 4, 3}}, {"dx", f32, {2, 3, 2, 3}}},
       [](Engine& e, Arguments& t) { upsample_backward(e, 2, t["dy"], t["dx"]); }},
      {"cross_entropy",
       {{"logits", f32, {5, 7}}, {"targets", i32, {5}}, {"loss", f32, {5}}, {"dlogits", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { cross_entropy(e, t["logits"], t["targets"], 7, 1, t["loss"], &t["dlogits"]); }},
      {"cross_entropy_maxima",
       {{"logits", f32, {5, 7}}, {"maxima", f32, {5}}},
       [](Engine& e, Arguments& t) { cross_entropy_maxima(e, t["logits"], {3, 9}, t["maxima"]); }},
      {"cross_entropy_terms",
       {{"logits", f32, {5, 7}}, {"targets", i32, {5}}, {"maxima", f32, {5}}, {"terms", f32, {2, 5}}},
       [](Engine& e, Arguments& t) {
         cross_entropy_terms(e, t["logits"], t["targets"], {3, 9}, t["maxima"], t["terms"]);
       }},
      {"cross_entropy_of_terms",
       {{"logits", f32, {5, 7}},
        {"targets", i32, {5}},
        {"maxima", f32, {5}},
        {"terms", f32, {2, 5}},
        {"loss", f32, {5}},
        {"dlogits", f32, {5, 7}}},
       [](Engine& e, Arguments& t) {
         cross_entropy_of_terms(e, t["logits"], t["targets"], {3, 9}, t["maxima"], t["terms"], 1, t["loss"], &t["dlogits"]);
       }},
      {"gumbel_softmax",
       {{"x", f32, {5, 7}}, {"y", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { gumbel_softmax(e, {}, t["x"], t["y"]); }},
      {"gumbel_softmax_backward",
       {{"y", f32, {5, 7}}, {"dy", f32, {5, 7}}, {"dx", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { gumbel_softmax_backward(e, 1, t["y"], t["dy"], t["dx"]); }},
      {"argmax_rows",
       {{"x", f32, {5, 7}, Argument::any_float}, {"ids", i32, {5}}},
       [](Engine& e, Arguments& t) { argmax_rows(e, t["x"], t["ids"]); }},
      {"categorical_kl",
       {{"logits", f32, {5, 7}}, {"kl", f32, {5}}, {"dlogits", f32, {5, 7}}},
       [](Engine& e, Arguments& t) { categorical_kl(e, t["logits"], 1, t["kl"], &t["dlogits"]); }},
      {"logit_laplace",
       {{"maps", f32, {5, 6}}, {"pixels", f32, {5, 3}}, {"loss", f32, {5}}, {"dmaps", f32, {5, 6}}},
       [](Engine& e, Arguments& t) { logit_laplace(e, {}, t["maps"], t["pixels"], 1, t["loss"], &t["dmaps"]); }},
      {"adamw",
       {{"value", f32, {5}},
        {"gradient", f32, {5}},
        {"mean", f32, {5}},
        {"variance", f32, {5}},
        {"copy", DType::bf16, {5}, Argument::may_be_missing}},
       [](Engine& e, Arguments& t) {
         const AdamWTensors tensors = {t["value"], t["gradient"], t["mean"], t["variance"], t["copy"], true};
         adamw(e, std::span(&tensors, 1), {});
       }},
      {"sums_of_squares",
       {{"x", f32, {5}, Argument::any_float}},
       [](Engine& e, Arguments& t) { (void)sum_of_squares(e, std::span(&t["x"], 1)); }},
  };
  return table;
}

// One call after another with one of its tensors changed.
class Trial {
 public:
  Trial(Engine& engine, const Call& call) : engine_(engine), call_(call) {
    for (const Argument& argument : call.arguments) {
      right_[argument.name] = engine.zeros(argument.shape, argument.dtype, Use::data);
    }
  }

  // Message of the op with this tensor in place of the right one.
  std::string with(const Argument& argument, const Tensor& tensor) {
    Arguments arguments = right_;
    arguments[argument.name] = tensor;
    return message_of(ErrorKind::usage, [&] { call_.call(engine_, arguments); });
  }
  const Tensor& right(const Argument& argument) { return right_[argument.name]; }

  // Whether a message names the op, one of its tensors, and what was expected.
  bool is_clear(const std::string& message) const {
    if (!message.starts_with(std::string(call_.op) + ": ")) return false;
    if (has(message, ": classes: ")) return true;
    const bool names_one = std::ranges::any_of(call_.arguments, [&](const Argument& argument) {
      return has(message, std::string(argument.name) + ": ") || has(message, std::string(argument.name) + " ");
    });
    return names_one && (has(message, "expected") || has(message, "do not fit") || has(message, "not within"));
  }

 private:
  Engine& engine_;
  const Call& call_;
  Arguments right_;
};

// Shapes that are nearly the right one: an axis longer or shorter by one, one more axis, and one fewer.
std::vector<Shape> near(const Shape& shape) {
  std::vector<Shape> shapes;
  for (std::size_t axis = 0; axis < shape.axes(); ++axis) {
    shapes.push_back(shape.with(axis, shape[axis] + 1));
    shapes.push_back(shape.with(axis, shape[axis] - 1));
  }
  std::vector<std::size_t> lengths(shape.lengths().begin(), shape.lengths().end());
  lengths.insert(lengths.begin(), 1);
  shapes.emplace_back(std::span(lengths));
  lengths.erase(lengths.begin(), lengths.begin() + 2);
  shapes.emplace_back(std::span(lengths));
  return shapes;
}

}  // namespace

TEST_CASE("ops refuse tensors that are missing, and name them", "[nn][errors]") {
  Engine engine({}, "ref");
  for (const Call& call : calls()) {
    Trial trial(engine, call);
    for (const Argument& argument : call.arguments) {
      INFO(call.op << ", " << argument.name);
      CHECK(trial.with(argument, trial.right(argument)) == "no error");
      const std::string message = trial.with(argument, {});
      const std::string expected =
          argument.freedom == Argument::may_be_missing ? "no error" : fmt::format("{}: {}: no tensor", call.op, argument.name);
      CHECK(message == expected);
    }
  }
}

TEST_CASE("ops refuse tensors of another device, and name both", "[nn][errors]") {
  Engine engine({}, "ref");
  const std::shared_ptr<Pool> elsewhere = Pool::make({Device::Kind::cuda, 1}, make_cpu_allocator());
  for (const Call& call : calls()) {
    Trial trial(engine, call);
    for (const Argument& argument : call.arguments) {
      INFO(call.op << ", " << argument.name);
      const Tensor tensor(*elsewhere, argument.shape, argument.dtype, Use::data);
      const std::string message = trial.with(argument, tensor);
      CHECK(message ==
            fmt::format("{}: {}: {} on cuda:1; expected one on cpu", call.op, argument.name, to_text(trial.right(argument))));
    }
  }
}

TEST_CASE("ops refuse tensors of another type", "[nn][errors]") {
  Engine engine({}, "ref");
  for (const Call& call : calls()) {
    Trial trial(engine, call);
    for (const Argument& argument : call.arguments) {
      INFO(call.op << ", " << argument.name);
      if (argument.freedom == Argument::any_type) continue;
      const std::string integers = trial.with(argument, engine.zeros(argument.shape, DType::i16, Use::data));
      INFO(integers);
      CHECK(has(integers, std::string(call.op) + ": "));
      CHECK(has(integers, fmt::format("{}: i16 {}", argument.name, to_text(argument.shape))));
      // A type that ops have, but not beside the others.
      if (argument.freedom == Argument::any_float || std::string_view(argument.name) == "copy") continue;
      const std::string doubles = trial.with(argument, engine.zeros(argument.shape, DType::f64, Use::data));
      INFO(doubles);
      CHECK(trial.is_clear(doubles));
      CHECK(has(doubles, "f64"));
    }
  }
  // The same type is no conversion.
  Tensor x = engine.zeros({3}, DType::f32, Use::data);
  CHECK(has(message_of(ErrorKind::usage, [&] { convert(engine, x, x); }), "different types"));
}

TEST_CASE("ops refuse tensors of other shapes, and say which they expect", "[nn][errors]") {
  Engine engine({}, "ref");
  for (const Call& call : calls()) {
    Trial trial(engine, call);
    for (const Argument& argument : call.arguments) {
      std::size_t refused = 0;
      for (const Shape& shape : near(argument.shape)) {
        INFO(call.op << ", " << argument.name << " " << to_text(shape));
        const std::string message = trial.with(argument, engine.zeros(shape, argument.dtype, Use::data));
        if (message == "no error") continue;  // x may well have another number of rows
        INFO(message);
        CHECK(trial.is_clear(message));
        ++refused;
      }
      INFO(call.op << ", " << argument.name);
      const bool takes_any = call.arguments.size() == 1;
      CHECK((refused > 0) != takes_any);
    }
  }
}

TEST_CASE("ops refuse options that make no sense", "[nn][errors]") {
  Engine engine({}, "ref");
  const auto zeros = [&](const Shape& shape) { return engine.zeros(shape, DType::f32, Use::data); };
  const auto complaint = [](const auto& operation) { return message_of(ErrorKind::usage, operation); };
  Tensor square = zeros({4, 4}), other = zeros({4, 4}), third = zeros({4, 4}), row = zeros({4}), row2 = zeros({4}),
         row3 = zeros({4});
  const Activation& relu = find_activation("relu");

  CHECK(has(complaint([&] { matmul(engine, square, other, third, {.accumulate = true, .bias = row}); }), "accumulate"));
  CHECK(has(complaint([&] { matmul(engine, square, other, third, {.accumulate = true, .activation = &relu}); }), "accumulate"));
  CHECK(has(complaint([&] { matmul(engine, square, other, square); }), "matmul: out is in the memory of a or b"));
  Tensor part = square.slice(0, 2);
  Tensor long_tensor = square.slice(1, 3);
  CHECK(has(complaint([&] { matmul(engine, part, other, long_tensor); }), "memory of a or b"));

  for (const double rate : {-0.1, 1.0, 0.999999, std::nan("")}) {
    INFO(rate);
    CHECK(has(complaint([&] { dropout(engine, {.rate = rate}, square, other); }), "dropout: rate: "));
  }
  FewBitTable table = small_table();
  Tensor stash = engine.zeros({2}, DType::u8, Use::data);
  table.levels = {0, 1, 2};
  table.boundaries = {0, 1};
  CHECK(has(complaint([&] { activate_few_bit(engine, relu, table, square, other, stash); }),
            "activate_few_bit: table: 3 levels and 2 boundaries"));
  table = small_table();
  table.boundaries.clear();
  CHECK(has(complaint([&] { activate_few_bit_backward(engine, table, stash, square, other); }), "2 levels and 0 boundaries"));
  CHECK(has(complaint([&] { activate_few_bit_backward(engine, {}, stash, square, other); }), "0 levels and 0 boundaries"));

  for (const double epsilon : {0.0, -1.0, std::nan("")}) {
    CHECK(has(complaint([&] { layer_norm(engine, square, row, row, epsilon, other, row2, row3); }), "layer_norm: epsilon: "));
    CHECK(has(complaint([&] { batch_norm(engine, square, row, row, epsilon, other, row2, row3); }), "batch_norm: epsilon: "));
  }
  Tensor one_row = zeros({1, 4});
  Tensor out_row = zeros({1, 4});
  CHECK(has(complaint([&] { batch_norm(engine, one_row, row, row, 1, out_row, row2, row3); }), "at least two rows"));

  Tensor tokens = zeros({1, 4, 4}), out = zeros({1, 4, 4}), lse = zeros({1, 2, 4});
  const AttentionMask causal = AttentionMask::causal(4, 4);
  const auto attend = [&](const AttentionShape& shape, double rate, std::size_t first) {
    return complaint([&] {
      attention(engine, shape, causal, {.rate = rate}, {tokens, first}, {tokens}, {tokens}, {out}, lse);
    });
  };
  CHECK(attend({2, 2, 1}, 0, 0) == "no error");
  CHECK(has(attend({0, 2, 1}, 0, 0), "attention: 0 heads of 2"));
  CHECK(has(attend({2, 0, 1}, 0, 0), "attention: 2 heads of 0"));
  CHECK(has(attend({2, 2, 0}, 0, 0), "attention: scale: 0"));
  CHECK(has(attend({2, 2, 1, 3, 4}, 0, 0), "attention: heads 3 to 5 of 4"));
  CHECK(has(attend({2, 2, 1, 1}, 0, 0), "attention: heads 1 to 3 of 0"));
  CHECK(has(attend({2, 2, 1}, 1, 0), "attention: rate: 1"));
  CHECK(has(attend({2, 2, 1}, 0, 1), "attention: q: f32 (1, 4, 4)"));
  CHECK(has(attend({2, 2, 1}, 0, 99), "from column 99 on"));

  Tensor image = zeros({1, 4, 4, 2}), w = zeros({3, 2, 3, 3}), image_out = zeros({1, 2, 2, 3});
  CHECK(has(complaint([&] { conv2d(engine, {.stride = 0}, image, w, {}, image_out); }), "conv2d: stride: 0"));
  Tensor large_w = zeros({3, 2, 5, 3});
  CHECK(has(complaint([&] { conv2d(engine, {}, image, large_w, {}, image_out); }), "conv2d: w: f32 (3, 2, 5, 3)"));
  Tensor which = engine.zeros({1, 2, 2, 3}, DType::u8, Use::data);
  for (const std::size_t k : {0U, 5U, 16U}) {
    CHECK(has(complaint([&] { max_pool(engine, k, image, image_out, which); }), "max_pool: x: f32 (1, 4, 4, 2)"));
  }
  const Tensor targets = engine.zeros({4}, DType::i32, Use::data);
  CHECK(has(complaint([&] { cross_entropy(engine, square, targets, 0, 1, row, nullptr); }), "classes: 0; expected 1 to 4"));
  CHECK(has(complaint([&] { cross_entropy(engine, square, targets, 5, 1, row, nullptr); }), "classes: 5; expected 1 to 4"));
  CHECK(has(complaint([&] { cross_entropy(engine, square, targets, 4, 1, row, nullptr, 1.5); }), "smoothing: 1.5; expected 0"));
  CHECK(has(complaint([&] { cross_entropy_maxima(engine, square, {}, row); }), "slice: of 0 classes; expected at least 1"));
  Tensor ids = engine.zeros({4}, DType::i32, Use::data), no_columns = zeros({4, 0}), odd = zeros({4, 3}),
         pixels = zeros({4, 2});
  for (const double temperature : {0.0, -1.0, std::nan("")}) {
    CHECK(has(complaint([&] { gumbel_softmax(engine, {.temperature = temperature}, square, other); }), "temperature: "));
    CHECK(has(complaint([&] { gumbel_softmax_backward(engine, temperature, square, other, other); }), "temperature: "));
  }
  CHECK(has(complaint([&] { argmax_rows(engine, no_columns, ids); }),
            "argmax_rows: x: f32 (4, 0); expected at least one column"));
  CHECK(has(complaint([&] { categorical_kl(engine, no_columns, 1, row, nullptr); }), "expected at least one column"));
  CHECK(has(complaint([&] { logit_laplace(engine, {}, odd, pixels, 1, row, nullptr); }), "an even number of columns"));
  CHECK(has(complaint([&] { logit_laplace(engine, {std::nan("")}, square, pixels, 1, row, nullptr); }), "least_log_b: nan"));
  CHECK(has(complaint([&] { adamw(engine, {}, {.step = 0}); }), "adamw: step: 0"));
  CHECK(has(complaint([&] { adamw(engine, {}, {.variance_limit = -1}); }), "adamw: variance_limit: -1; expected 0 or more"));
  Tensor half = engine.zeros({4}, DType::bf16, Use::data);
  const AdamWTensors halves = {half, half, half, half};
  CHECK(has(complaint([&] { adamw(engine, std::span(&halves, 1), {}); }), "adamw: gradient: bf16 (4)"));
  const AdamWTensors copied = {half, row, row, row, half};
  CHECK(has(complaint([&] { adamw(engine, std::span(&copied, 1), {}); }), "adamw: copy: bf16 (4)"));

  Tensor bytes = engine.zeros({4}, DType::u8, Use::data);
  Tensor words = engine.zeros({4}, DType::i64, Use::data);
  for (const double value : {256.0, -1.0, 0.5, std::nan("")}) {
    CHECK(has(complaint([&] { fill(engine, bytes, value); }), "fill: value: "));
  }
  CHECK(has(complaint([&] { fill(engine, words, 0x1p63); }), "fill: value: "));
  CHECK(complaint([&] { fill(engine, words, -0x1p63); }) == "no error");
  CHECK(complaint([&] { fill(engine, bytes, 255); }) == "no error");
}

}  // namespace bitloom::nn
