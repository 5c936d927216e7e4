#include "tests/cases/run.h"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <optional>

#include "core/half.h"
#include "nn/backend.h"
#include "tests/support/compare.h"
#include "tests/support/threads.h"

namespace bitloom::test {
namespace {

template <typename T>
std::vector<std::byte> bytes_as(const std::vector<double>& numbers, T (*convert)(double)) {
  std::vector<T> elements(numbers.size());
  std::ranges::transform(numbers, elements.begin(), convert);
  const auto bytes = std::as_bytes(std::span(elements));
  return {bytes.begin(), bytes.end()};
}

// Rounding twice, through float, does not matter: these are only where everything starts from.
std::vector<std::byte> to_bytes(const std::vector<double>& numbers, DType dtype) {
  switch (dtype) {
    case DType::f64: return bytes_as<double>(numbers, [](double x) { return x; });
    case DType::f32: return bytes_as<float>(numbers, [](double x) { return static_cast<float>(x); });
    case DType::bf16: return bytes_as<bf16>(numbers, [](double x) { return to_bf16(static_cast<float>(x)); });
    case DType::f16: return bytes_as<f16>(numbers, [](double x) { return to_f16(static_cast<float>(x)); });
    case DType::i32: return bytes_as<std::int32_t>(numbers, [](double x) { return static_cast<std::int32_t>(x); });
    case DType::u8: return bytes_as<std::uint8_t>(numbers, [](double x) { return static_cast<std::uint8_t>(x); });
    default: throw std::logic_error("no case has tensors of that type");
  }
}

template <typename T>
std::vector<double> numbers_as(const std::vector<std::byte>& bytes, double (*convert)(T)) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  std::ranges::copy(bytes, std::as_writable_bytes(std::span(elements)).begin());
  std::vector<double> numbers(elements.size());
  std::ranges::transform(elements, numbers.begin(), convert);
  return numbers;
}

std::vector<double> from_bytes(const std::vector<std::byte>& bytes, DType dtype) {
  switch (dtype) {
    case DType::f64: return numbers_as<double>(bytes, [](double x) { return x; });
    case DType::f32: return numbers_as<float>(bytes, [](float x) { return static_cast<double>(x); });
    case DType::bf16: return numbers_as<bf16>(bytes, [](bf16 x) { return static_cast<double>(to_float(x)); });
    case DType::f16: return numbers_as<f16>(bytes, [](f16 x) { return static_cast<double>(to_float(x)); });
    case DType::i32: return numbers_as<std::int32_t>(bytes, [](std::int32_t x) { return static_cast<double>(x); });
    case DType::u8: return numbers_as<std::uint8_t>(bytes, [](std::uint8_t x) { return static_cast<double>(x); });
    default: throw std::logic_error("no case has tensors of that type");
  }
}

std::vector<std::byte> bytes_of(nn::Engine& engine, const nn::Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  engine.read(tensor, tensor.dtype(), bytes);
  return bytes;
}

// The tensor of a slot inside a larger one, whose other bytes are guards.
class GuardedTensor {
 public:
  GuardedTensor(nn::Engine& engine, const Slot& slot, DType values, bool is_misaligned) : engine_(&engine) {
    const DType dtype = dtype_of(slot.kind, values);
    const std::size_t before = guard + (is_misaligned ? 1 : 0);
    const std::size_t size = slot.shape.size();
    all_ = engine.empty({before + size + guard}, dtype, nn::Use::workspace);
    tensor_ = all_.slice(before, before + size).reshaped(slot.shape);
    start_.assign(all_.bytes(), guard_byte);
    first_ = before * dtype_size(dtype);
    // All bits set are NaN in every floating type.
    const std::byte poison = slot.kind == Kind::u8 || slot.kind == Kind::i32 ? std::byte{0xcd} : std::byte{0xff};
    const std::vector<std::byte> body =
        slot.numbers.empty() ? std::vector<std::byte>(tensor_.bytes(), poison) : to_bytes(slot.numbers, dtype);
    if (body.size() != tensor_.bytes()) throw std::logic_error("slot " + slot.name + " has not as many numbers as elements");
    std::ranges::copy(body, start_.begin() + static_cast<std::ptrdiff_t>(first_));
    engine.write(all_, start_);
  }

  const nn::Tensor& tensor() const { return tensor_; }

  // Whether guards, and where `body_too` all elements, are as they were.
  bool is_unchanged(bool body_too) const {
    std::vector<std::byte> now = bytes_of(*engine_, all_);
    if (!body_too) {
      const auto begin = static_cast<std::ptrdiff_t>(first_);
      std::copy_n(start_.begin() + begin, tensor_.bytes(), now.begin() + begin);
    }
    return now == start_;
  }

 private:
  static constexpr std::size_t guard = 64;  // elements: a multiple of a cache line, whatever their type
  static constexpr std::byte guard_byte{0xa7};

  nn::Engine* engine_;
  nn::Tensor all_, tensor_;
  std::vector<std::byte> start_;  // bytes of all_ at the start
  std::size_t first_ = 0;         // byte of the tensor in it
};

// All tensors of a run.
class Bench {
 public:
  Bench(nn::Engine& engine, DType values, bool is_misaligned)
      : engine_(engine), values_(values), is_misaligned_(is_misaligned) {}

  void put(const std::vector<Slot>& slots) {
    for (const Slot& slot : slots) put(slot);
  }
  void put(const Slot& slot) {
    guarded_.insert_or_assign(slot.name, GuardedTensor(engine_, slot, values_, is_misaligned_));
    tensors_.set(slot.name, guarded_.at(slot.name).tensor());
  }
  // `output` will be written into the memory of `input`.
  void put_in_place(const std::string& output, const std::string& input) {
    guarded_.insert_or_assign(output, guarded_.at(input));
    tensors_.set(output, guarded_.at(output).tensor());
    guarded_.erase(input);
  }
  Tensors& tensors() { return tensors_; }

  void collect(const std::vector<Slot>& slots, Outcome& outcome) {
    for (const Slot& slot : slots) {
      outcome.bytes[slot.name] = bytes_of(engine_, tensors_[slot.name]);
      outcome.numbers[slot.name] = from_bytes(outcome.bytes[slot.name], tensors_[slot.name].dtype());
    }
  }
  // Which tensor was written outside of its elements, or within them though it is none of `written`.
  std::string find_problem(const std::vector<Slot>& written, const char* pass) const {
    for (const auto& [name, guarded] : guarded_) {
      const bool may_change = std::ranges::any_of(written, [&](const Slot& slot) { return slot.name == name; });
      if (!guarded.is_unchanged(false)) return fmt::format("{}: something was written next to {}", pass, name);
      if (!may_change && !guarded.is_unchanged(true)) return fmt::format("{}: {} was written", pass, name);
    }
    return "";
  }
  // Tensors that the forward pass wrote must not be written by backward.
  void keep(const std::vector<Slot>& slots, const Outcome& outcome) {
    for (const Slot& slot : slots) {
      Slot kept = slot;
      kept.numbers = outcome.numbers.at(slot.name);
      put(kept);
    }
  }

 private:
  nn::Engine& engine_;
  DType values_;
  bool is_misaligned_;
  std::map<std::string, GuardedTensor> guarded_;
  Tensors tensors_;
};

}  // namespace

DType dtype_of(Kind kind, DType values) {
  switch (kind) {
    case Kind::values: return values;
    case Kind::parameters: return nn::parameter_type(values);
    case Kind::f32: return DType::f32;
    case Kind::f64: return DType::f64;
    case Kind::i32: return DType::i32;
    case Kind::u8: return DType::u8;
  }
  throw std::logic_error("a kind without a type");
}

nn::Tensor to_tensor(nn::Engine& engine, const std::vector<double>& numbers, const nn::Shape& shape, DType dtype) {
  nn::Tensor tensor = engine.empty(shape, dtype, nn::Use::data);
  engine.write(tensor, to_bytes(numbers, dtype));
  return tensor;
}

std::vector<double> to_numbers(nn::Engine& engine, const nn::Tensor& tensor) {
  return from_bytes(bytes_of(engine, tensor), tensor.dtype());
}

OpCase rounded(OpCase the_case, DType values) {
  for (std::vector<Slot>* slots : {&the_case.inputs, &the_case.outputs, &the_case.upstream, &the_case.gradients}) {
    for (Slot& slot : *slots) {
      const DType dtype = dtype_of(slot.kind, values);
      slot.numbers = from_bytes(to_bytes(slot.numbers, dtype), dtype);
    }
  }
  return the_case;
}

Outcome run(const OpCase& the_case, nn::Engine& engine, DType values, const RunOptions& options) {
  Outcome outcome;
  Bench bench(engine, values, options.is_misaligned);
  bench.put(the_case.inputs);
  bench.put(the_case.outputs);
  if (options.in_place) {
    for (const InPlace& pair : the_case.forward_in_place) bench.put_in_place(pair.output, pair.input);
  }
  the_case.forward(engine, bench.tensors());
  bench.collect(the_case.outputs, outcome);
  outcome.problem = bench.find_problem(the_case.outputs, "forward");
  if (the_case.backward == nullptr || !options.backward || !outcome.problem.empty()) return outcome;

  bench.put(the_case.inputs);
  bench.keep(the_case.outputs, options.kept != nullptr ? *options.kept : outcome);
  bench.put(the_case.upstream);
  bench.put(the_case.gradients);
  if (options.in_place) {
    for (const InPlace& pair : the_case.backward_in_place) bench.put_in_place(pair.output, pair.input);
  }
  the_case.backward(engine, bench.tensors());
  bench.collect(the_case.gradients, outcome);
  outcome.problem = bench.find_problem(the_case.gradients, "backward");
  return outcome;
}

namespace {

// Error of a sum of about a hundred products, and of one rounding of the result.
double limit_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-12;
    case DType::f32: return 2e-5;
    case DType::f16: return 4e-3;
    default: return 2e-2;
  }
}

}  // namespace

std::string compare(const OpCase& the_case, const Outcome& actual, const Outcome& expected, DType values) {
  if (!actual.problem.empty()) return actual.problem;
  if (!expected.problem.empty()) return "the reference: " + expected.problem;
  for (const std::vector<Slot>* slots : {&the_case.outputs, &the_case.gradients}) {
    for (const Slot& slot : *slots) {
      const auto found = actual.numbers.find(slot.name);
      if (found == actual.numbers.end()) continue;  // result of a backward pass that was not run
      const std::vector<double>& is = found->second;
      const std::vector<double>& should_be = expected.numbers.at(slot.name);
      if (is.empty() && should_be.empty()) continue;
      const DType dtype = dtype_of(slot.kind, values);
      if (dtype == DType::i32 || dtype == DType::u8) {
        const auto [here, there] = std::ranges::mismatch(is, should_be);
        if (here == is.end() && there == should_be.end()) continue;
        return fmt::format("{}: element {} is {}, expected {}", slot.name, here - is.begin(), *here, *there);
      }
      const std::string problem = compare(is, should_be, std::max(the_case.limit * limit_of(values), 1e-13));
      if (!problem.empty()) return slot.name + ": " + problem;
    }
  }
  return "";
}

std::string check_backend(const OpCase& the_case, nn::Engine& engine, DType values) {
  nn::Engine reference({}, "ref");
  const OpCase same_start = rounded(the_case, values);
  const auto problem_of = [&](const Outcome& actual) {
    return compare(the_case, actual, run(same_start, reference, DType::f64, {.kept = &actual}), values);
  };
  std::optional<Outcome> of_one_thread;
  for (const int n : {1, 2, 3}) {
    const Threads threads(n);
    const Outcome outcome = run(the_case, engine, values);
    if (!of_one_thread) {
      if (const std::string problem = problem_of(outcome); !problem.empty()) return problem;
      of_one_thread = outcome;
    }
    if (!outcome.problem.empty()) return fmt::format("{} threads: {}", n, outcome.problem);
    for (const auto& [name, bytes] : outcome.bytes) {
      if (bytes != of_one_thread->bytes.at(name)) return fmt::format("{}: {} threads and 1 do not give the same bits", name, n);
    }
  }
  const Outcome misaligned = run(the_case, engine, values, {.is_misaligned = true});
  if (const std::string problem = problem_of(misaligned); !problem.empty()) return "misaligned: " + problem;
  if (the_case.forward_in_place.empty() && the_case.backward_in_place.empty()) return "";
  const Outcome in_place = run(the_case, engine, values, {.in_place = true});
  if (const std::string problem = problem_of(in_place); !problem.empty()) return "in place: " + problem;
  return "";
}

}  // namespace bitloom::test
